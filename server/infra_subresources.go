package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/infra/changesapi"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providercontroller"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

const (
	typesSubresource = "types"
	typesKind        = "ProviderTypeList"
	// maxTypes is how many types a request may name: the largest schemas are megabytes.
	maxTypes = 100
)

// planChanges serves the subresource changes of plans.
func planChanges(client apiClient) apiserver.Subresource {
	return apiserver.Subresource{
		Resource:    v1alpha1.PlanResource,
		Name:        changesapi.Subresource,
		Kind:        changesapi.ListKind,
		LongRunning: changesapi.IsStream,
		Serve: func(w http.ResponseWriter, r *http.Request, namespace, name string, _ apiserver.User) {
			api, err := client(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			changesapi.New(api).Serve(w, r, namespace, name)
		},
	}
}

// providerTypes serves the schemas of a Provider's types that the query parameters
// resource and data name. OpenAPI lacks some of their details, which a client needs to
// convert a state file to objects.
func providerTypes(registry func(context.Context) (*providercontroller.Registry, error)) apiserver.Subresource {
	return apiserver.Subresource{
		Resource: v1alpha1.ProviderResource, Name: typesSubresource, Kind: typesKind, ClusterScoped: true,
		LongRunning: func(*http.Request) bool { return false },
		Serve: func(w http.ResponseWriter, r *http.Request, _, name string, _ apiserver.User) {
			providers, failed := registry(r.Context())
			if failed != nil {
				http.Error(w, failed.Error(), http.StatusServiceUnavailable)
				return
			}
			if providers == nil {
				writeStatus(w, apierrors.NewNotFound(v1alpha1.ProviderResource.GroupResource(), name))
				return
			}
			list, err := describeTypes(providers, name, r.URL.Query()["resource"], r.URL.Query()["data"])
			if err != nil {
				writeStatus(w, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		},
	}
}

// writeStatus answers a request with an error.
func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // the client may be gone
}

// describeTypes returns the named types of a provider that are served.
func describeTypes(registry *providercontroller.Registry, provider string, resources, data []string) (*infraschema.TypeDescriptionList, *apierrors.StatusError) {
	if n := len(resources) + len(data); n == 0 || n > maxTypes {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the request names %d types: name up to %d, as in ?resource=aws_subnet&data=aws_ami", n, maxTypes))
	}
	list := &infraschema.TypeDescriptionList{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: typesKind, Items: []infraschema.TypeDescription{}}
	for _, asked := range []struct {
		kind  expr.RefKind
		names []string
	}{{expr.Resource, resources}, {expr.Data, data}} {
		for _, name := range asked.names {
			served, err := registry.Kind(expr.Ref{Kind: asked.kind, Type: name})
			if err != nil || served.Provider != provider {
				continue
			}
			list.Items = append(list.Items, infraschema.TypeDescription{
				Type: served.Type, Data: served.Data, Kind: served.Name.Kind, Plural: served.Plural, Schema: served.Schema,
			})
		}
	}
	return list, nil
}
