package imports

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// requestTimeout bounds each request to a member, so that a member that accepts connections and
// never responds is detected.
const requestTimeout = 30 * time.Second

// crdPageSize is how many CRDs are read per request; one may be a megabyte.
const crdPageSize = 20

// connection describes how to connect to a member.
type connection struct {
	// digest identifies the connection's configuration.
	digest string
	// open creates the clients; it does not connect yet.
	open func() (memberClients, error)
}

// memberClients are the clients that read a member's types.
type memberClients struct {
	dynamic dynamic.Interface
	meta    metadata.Interface
	openapi documentSource
}

// documentSource reads a server's OpenAPI v3 documents and discovery.
type documentSource interface {
	// index returns the address of each group version's document. The address changes with the
	// document.
	index(ctx context.Context) (map[schema.GroupVersion]string, error)
	// document reads one document.
	document(ctx context.Context, address string) ([]byte, error)
	// resources returns the resources of a group version from discovery.
	resources(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error)
}

func byKubeconfig(session *fleet.Session) func(*v1alpha1.Cluster) (connection, error) {
	return func(cluster *v1alpha1.Cluster) (connection, error) {
		access, err := session.Clusters.Access(cluster)
		if err != nil {
			return connection{}, err
		}
		return connection{digest: access.Digest, open: func() (memberClients, error) {
			w, err := newMemberClients(access.REST)
			if err != nil {
				return memberClients{}, fmt.Errorf("create a client for cluster %s: %w", cluster.Name, err)
			}
			return w, nil
		}}, nil
	}
}

func newMemberClients(cfg *rest.Config) (none memberClients, err error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = FieldManager
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return none, err
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return none, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return none, err
	}
	return memberClients{dynamic: dyn, meta: meta, openapi: httpDocuments{disco.RESTClient()}}, nil
}

// httpDocuments reads documents from an API server.
type httpDocuments struct{ client rest.Interface }

func (o httpDocuments) index(ctx context.Context) (map[schema.GroupVersion]string, error) {
	data, err := o.client.Get().AbsPath("/openapi/v3").Timeout(requestTimeout).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read /openapi/v3: %w", err)
	}
	var listed struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(data, &listed); err != nil {
		return nil, fmt.Errorf("read /openapi/v3: %w", err)
	}
	out := map[schema.GroupVersion]string{}
	for path, at := range listed.Paths {
		if gv, ok := versionOf(path); ok {
			out[gv] = at.ServerRelativeURL
		}
	}
	return out, nil
}

// document reads an address from the index. It is a path with a digest of the content.
func (o httpDocuments) document(ctx context.Context, address string) ([]byte, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document %q: %w", address, err)
	}
	request := o.client.Get().AbsPath(at.Path).Timeout(requestTimeout).SetHeader("Accept", "application/json")
	for name, values := range at.Query() {
		for _, v := range values {
			request = request.Param(name, v)
		}
	}
	data, err := request.DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document %s: %w", at.Path, err)
	}
	return data, nil
}

func (o httpDocuments) resources(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error) {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	data, err := o.client.Get().AbsPath(path).Timeout(requestTimeout).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the resources of %s: %w", gv, err)
	}
	out := &metav1.APIResourceList{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("read the resources of %s: %w", gv, err)
	}
	return out, nil
}

// versionOf parses a path of the index: api/v1, apis/apps/v1.
func versionOf(path string) (schema.GroupVersion, bool) {
	var rest string
	switch {
	case len(path) > len("apis/") && path[:len("apis/")] == "apis/":
		rest = path[len("apis/"):]
	case len(path) > len("api/") && path[:len("api/")] == "api/":
		rest = path[len("api/"):]
	default:
		return schema.GroupVersion{}, false
	}
	gv, err := schema.ParseGroupVersion(rest)
	return gv, err == nil && gv.Version != "" && (gv.Group == "") == (path[:4] == "api/")
}

// readCRDs reads the named CRDs, in pages if there are many, and calls take with each. It skips
// those that no longer exist.
func (w memberClients) readCRDs(ctx context.Context, names map[string]bool, take func(*apiextensionsv1.CustomResourceDefinition)) error {
	api := w.dynamic.Resource(crdResource)
	if len(names) <= crdPageSize/2 {
		for name := range names {
			if err := withTimeout(ctx, func(ctx context.Context) error {
				u, err := api.Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return takeCRD(u, take)
			}); ignoreNotFound(err) != nil {
				return fmt.Errorf("read CustomResourceDefinition %s: %w", name, err)
			}
		}
		return nil
	}
	options := metav1.ListOptions{Limit: crdPageSize}
	for {
		err := withTimeout(ctx, func(ctx context.Context) error {
			some, err := api.List(ctx, options)
			if err != nil {
				return err
			}
			for i := range some.Items {
				if names[some.Items[i].GetName()] {
					if err := takeCRD(&some.Items[i], take); err != nil {
						return err
					}
				}
			}
			options.Continue = some.GetContinue()
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the CustomResourceDefinitions: %w", err)
		}
		if options.Continue == "" {
			return nil
		}
	}
}

func withTimeout(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// takeCRD converts via JSON, which the schema types require.
func takeCRD(u *unstructured.Unstructured, take func(*apiextensionsv1.CustomResourceDefinition)) error {
	crd, err := asCRD(u)
	if err != nil {
		return err
	}
	take(crd)
	return nil
}

func asCRD(u *unstructured.Unstructured) (*apiextensionsv1.CustomResourceDefinition, error) {
	u.SetManagedFields(nil)
	data, err := u.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("read CustomResourceDefinition %s: %w", u.GetName(), err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal(data, crd); err != nil {
		return nil, fmt.Errorf("read CustomResourceDefinition %s: %w", u.GetName(), err)
	}
	return crd, nil
}
