package fleet

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// bindingCaches hold the bindings of namespaced objects and those of cluster-scoped objects.
type bindingCaches struct {
	namespaced, global cache.SharedIndexInformer
}

func newBindingCaches(dyn dynamic.Interface) bindingCaches {
	of := func(gvr schema.GroupVersionResource) cache.SharedIndexInformer {
		return informer(dyn, gvr, cache.Indexers{byCluster: clustersOf, byKind: kindOf}, DecodeAs[v1alpha1.ResourceBinding])
	}
	return bindingCaches{namespaced: of(v1alpha1.ResourceBindingResource), global: of(v1alpha1.ClusterResourceBindingResource)}
}

func (c bindingCaches) all() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.namespaced, c.global}
}

func (c bindingCaches) by(index, value string) []*v1alpha1.ResourceBinding {
	var out []*v1alpha1.ResourceBinding
	for _, i := range c.all() {
		items, err := i.GetIndexer().ByIndex(index, value)
		if err != nil {
			continue // the index exists: newBindingCaches made it
		}
		out = append(out, list[v1alpha1.ResourceBinding](items)...)
	}
	return out
}

// Binding returns one binding from the cache.
func (s *Session) Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	if key.Namespace == "" {
		return get[v1alpha1.ResourceBinding](s.bindings.global, key.Name)
	}
	return get[v1alpha1.ResourceBinding](s.bindings.namespaced, key.String())
}

// Bindings returns all bindings from the cache, in no particular order.
func (s *Session) Bindings() []*v1alpha1.ResourceBinding {
	var out []*v1alpha1.ResourceBinding
	for _, i := range s.bindings.all() {
		out = append(out, list[v1alpha1.ResourceBinding](i.GetStore().List())...)
	}
	return out
}

// BindingsOn returns the bindings that choose a cluster or still have an object there.
func (s *Session) BindingsOn(cluster string) []*v1alpha1.ResourceBinding {
	return s.bindings.by(byCluster, cluster)
}

// BindingsOf returns the bindings of a kind's objects.
func (s *Session) BindingsOf(gk schema.GroupKind) []*v1alpha1.ResourceBinding {
	return s.bindings.by(byKind, gk.String())
}

// BindingsIn returns the bindings of a namespace's objects.
func (s *Session) BindingsIn(namespace string) []*v1alpha1.ResourceBinding {
	items, err := s.bindings.namespaced.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // the index exists: informer made it
	}
	return list[v1alpha1.ResourceBinding](items)
}

// BindingAPI returns the client for the bindings of a namespace's objects. With "", it returns the
// client for the bindings of cluster-scoped objects.
func (s *Session) BindingAPI(namespace string) dynamic.ResourceInterface {
	return s.Dynamic.Resource(v1alpha1.BindingResource(namespace)).Namespace(namespace)
}

// LiveBinding reads a binding from the API, not from the cache. It returns nil if the binding does
// not exist.
func (s *Session) LiveBinding(ctx context.Context, key types.NamespacedName) (*v1alpha1.ResourceBinding, error) {
	u, err := s.BindingAPI(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
			return nil, fmt.Errorf("read binding %s: the control plane does not serve bindings at the moment: %w", CacheKey(key), err)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read binding %s: %w", CacheKey(key), err)
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("read binding %s: %w", CacheKey(key), err)
	}
	return b, nil
}

// BindingIdentity returns the metadata with which server-side apply writes to exactly this binding.
// Because it has the UID, an apply never recreates a deleted binding.
func BindingIdentity(b *v1alpha1.ResourceBinding) map[string]any {
	out := map[string]any{"name": b.Name, "uid": string(b.UID)}
	if b.Namespace != "" {
		out["namespace"] = b.Namespace
	}
	return out
}
