package apiserver

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
)

// caches are the informers that the controllers of one term share.
//
// kube-controller-manager keeps every object whole, because some controller
// wants it so. Of those that run here, few want more than metadata, and the few
// know which objects: what users store most, ConfigMaps and Secrets, is not kept
// a second time in the process.
type caches struct {
	typed informers.SharedInformerFactory
	// any kind, by its metadata.
	untyped metadatainformer.SharedInformerFactory
	// the two that would be large if they were not filtered.
	rootCAs, tokens informers.SharedInformerFactory
}

// whole are the kinds that garbage collection and quota see as whole objects:
// quota looks into some of them, and the controllers keep the others anyway.
func whole(resource schema.GroupResource) bool {
	switch resource {
	case schema.GroupResource{Resource: "pods"},
		schema.GroupResource{Resource: "services"},
		schema.GroupResource{Resource: "persistentvolumeclaims"},
		schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"},
		schema.GroupResource{Resource: "namespaces"},
		schema.GroupResource{Resource: "serviceaccounts"},
		schema.GroupResource{Resource: "resourcequotas"},
		schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:
		return true
	}
	return false
}

func newCaches(metadataClient metadata.Interface, client clientset.Interface) *caches {
	withoutManagedFields := func(obj any) (any, error) {
		// They are a large part of most objects, and no controller reads them.
		if accessor, err := meta.Accessor(obj); err == nil {
			accessor.SetManagedFields(nil)
		}
		return obj, nil
	}
	ownersOnly := func(obj any) (any, error) {
		// Neither garbage collection nor quota reads these of what is kept by its metadata, and
		// kubectl apply puts the whole object into an annotation.
		if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
			o.TypeMeta = metav1.TypeMeta{}
			o.Labels, o.Annotations = nil, nil
		}
		return withoutManagedFields(obj)
	}
	typed := func(selector fields.Selector) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(client, informerResync,
			informers.WithTransform(withoutManagedFields),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector.String() }))
	}
	return &caches{
		typed:   typed(fields.Everything()),
		rootCAs: typed(fields.OneTermEqualSelector("metadata.name", rootcacertpublisher.RootCACertConfigMapName)),
		tokens:  typed(fields.OneTermEqualSelector("type", string(v1.SecretTypeServiceAccountToken))),
		untyped: metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, informerResync,
			metadatainformer.WithTransform(ownersOnly)),
	}
}

// ForResource implements informerfactory.InformerFactory.
func (c *caches) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	if whole(resource.GroupResource()) {
		return c.typed.ForResource(resource)
	}
	return c.untyped.ForResource(resource), nil
}

// Start starts the informers that have been asked for since the last call.
func (c *caches) Start(stop <-chan struct{}) {
	c.typed.Start(stop)
	c.untyped.Start(stop)
	c.rootCAs.Start(stop)
	c.tokens.Start(stop)
}

// wait returns when all informers have stopped.
func (c *caches) wait() {
	c.typed.Shutdown()
	c.untyped.Shutdown()
	c.rootCAs.Shutdown()
	c.tokens.Shutdown()
}
