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

// caches are the informers shared by the controllers of one session.
//
// kube-controller-manager caches every object in full, because some controller needs
// it. Of those that run here, few need more than metadata, and those know which objects
// they need. So ConfigMaps and Secrets, which users store most, are not cached a second
// time in the process.
type caches struct {
	typed informers.SharedInformerFactory
	// untyped caches the metadata of any kind.
	untyped metadatainformer.SharedInformerFactory
	// These are filtered; unfiltered they would be large.
	rootCAs, tokens, bootstrapTokens informers.SharedInformerFactory
}

// needsFullObjects reports whether garbage collection and quota see a kind as full
// objects: quota reads some of them, and the controllers cache the others anyway.
func needsFullObjects(resource schema.GroupResource) bool {
	switch resource {
	case schema.GroupResource{Resource: "pods"},
		schema.GroupResource{Resource: "services"},
		schema.GroupResource{Resource: "persistentvolumeclaims"},
		schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"},
		schema.GroupResource{Resource: "namespaces"},
		schema.GroupResource{Resource: "serviceaccounts"},
		schema.GroupResource{Group: "batch", Resource: "jobs"},
		schema.GroupResource{Resource: "resourcequotas"},
		PoliciesResource.GroupResource(),
		schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:
		return true
	}
	return false
}

func newCaches(metadataClient metadata.Interface, client clientset.Interface) *caches {
	withoutManagedFields := func(obj any) (any, error) {
		// Managed fields are a large part of most objects, and no controller reads
		// them.
		if accessor, err := meta.Accessor(obj); err == nil {
			accessor.SetManagedFields(nil)
		}
		return obj, nil
	}
	ownersOnly := func(obj any) (any, error) {
		// Neither garbage collection nor quota reads annotations and labels from
		// metadata, and kubectl apply stores the whole object in an annotation.
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
		typed:           typed(fields.Everything()),
		rootCAs:         typed(fields.OneTermEqualSelector("metadata.name", rootcacertpublisher.RootCACertConfigMapName)),
		tokens:          typed(fields.OneTermEqualSelector("type", string(v1.SecretTypeServiceAccountToken))),
		bootstrapTokens: typed(fields.OneTermEqualSelector("type", string(v1.SecretTypeBootstrapToken))),
		untyped: metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, informerResync,
			metadatainformer.WithTransform(ownersOnly)),
	}
}

// ForResource implements informerfactory.InformerFactory.
func (c *caches) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	if needsFullObjects(resource.GroupResource()) {
		return c.typed.ForResource(resource)
	}
	return c.untyped.ForResource(resource), nil
}

// Start starts the informers that were requested since the last call.
func (c *caches) Start(stop <-chan struct{}) {
	c.typed.Start(stop)
	c.untyped.Start(stop)
	c.rootCAs.Start(stop)
	c.tokens.Start(stop)
	c.bootstrapTokens.Start(stop)
}

// wait returns when all informers have stopped.
func (c *caches) wait() {
	c.typed.Shutdown()
	c.untyped.Shutdown()
	c.rootCAs.Shutdown()
	c.tokens.Shutdown()
	c.bootstrapTokens.Shutdown()
}
