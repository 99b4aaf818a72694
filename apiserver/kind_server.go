package apiserver

import (
	"context"
	"net/http"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/client-go/discovery"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
)

// KindServer serves kinds without CRDs at the end of the chain: it gets the requests that
// no other server of the chain serves. apiserver/kinds has the implementation.
type KindServer interface {
	http.Handler
	// Groups returns the groups that are served now. They have no APIServices.
	Groups() []metav1.APIGroup
	// Attach makes the front server announce the kinds in aggregated discovery. crds are the CRDs whose groups
	// the KindServer leaves alone. It is called once, before the server runs.
	Attach(front *aggregatorapiserver.APIAggregator, crds *apiextensionsapiserver.CustomResourceDefinitions) error
	// Await waits until all kinds are known. It returns an error when ctx ends.
	Await(ctx context.Context) error
	// Used returns discovery that omits kinds without stored objects, for controllers
	// that process every kind.
	Used(discovery.DiscoveryInterface) discovery.DiscoveryInterface
	// StoredResources returns the resources of a group that have stored objects, by
	// plural name.
	StoredResources(ctx context.Context, group string) ([]string, error)
}

// ChainEnd is the place of a KindServer in the chain. kinds.ChainEnd has the same fields.
type ChainEnd struct {
	// CustomResources configures the server of custom resources. Kinds without CRDs are
	// served in the same way: admission, authorization, limits of requests.
	CustomResources *apiextensionsapiserver.Config
	// Options open the storage of a kind. It has no watch cache (see DESIGN.md).
	Options generic.RESTOptionsGetter
	// Keyspace holds the stored objects.
	Keyspace clientv3.KV
	// Version of Kubernetes, for OpenAPI documents.
	Version string
	// NotFound answers requests for anything else.
	NotFound http.Handler
}

// uncachedOptions are the options of custom resources, but without a watch cache.
type uncachedOptions struct {
	upstream generic.RESTOptionsGetter
	storage  *keyspaceStorage
}

func (o uncachedOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := o.upstream.GetRESTOptions(resource, example)
	opts.Decorator = o.storage.uncached
	return opts, err
}

// StoredResources returns the resources of a group without CRDs that have stored
// objects, by plural name.
func (s *Server) StoredResources(ctx context.Context, group string) ([]string, error) {
	if s.controllers.kinds == nil {
		return nil, nil
	}
	return s.controllers.kinds.StoredResources(ctx, group)
}
