package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/infra/reference"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

const (
	typesSubresource = "types"
	typesKind        = "ProviderTypeList"
	// maxTypes is how many types a request may name: the largest schemas are megabytes.
	maxTypes = 100
)

// providerTypes serves the schemas of a Provider's types that the query parameters
// resource and data name. OpenAPI lacks some of their details, which a client needs to
// convert a state file to objects.
func (s *Server) providerTypes() apiserver.Subresource {
	return apiserver.Subresource{
		Resource: v1alpha1.ProviderResource, Name: typesSubresource, Kind: typesKind, ClusterScoped: true,
		LongRunning: func(*http.Request) bool { return false },
		Serve: func(w http.ResponseWriter, r *http.Request, _, name string, _ apiserver.User) {
			list, err := s.describe(name, r.URL.Query()["resource"], r.URL.Query()["data"])
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				status := err.Status()
				status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
				w.WriteHeader(int(status.Code))
				_ = json.NewEncoder(w).Encode(status) // the client may be gone
				return
			}
			_ = json.NewEncoder(w).Encode(list)
		},
	}
}

// describe returns the named types that are served.
func (s *Server) describe(provider string, resources, data []string) (*infraschema.TypeDescriptionList, *apierrors.StatusError) {
	if n := len(resources) + len(data); n == 0 || n > maxTypes {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the request names %d types: name up to %d, as in ?resource=aws_subnet&data=aws_ami", n, maxTypes))
	}
	list := &infraschema.TypeDescriptionList{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: typesKind, Items: []infraschema.TypeDescription{}}
	for _, asked := range []struct {
		kind  reference.RefKind
		names []string
	}{{reference.Resource, resources}, {reference.Data, data}} {
		for _, name := range asked.names {
			served, err := s.providers.Kind(reference.Ref{Kind: asked.kind, Type: name})
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
