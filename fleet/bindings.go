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

// bindingCaches hold the bindings of objects with a namespace and of those without.
type bindingCaches struct {
	namespaced, global cache.SharedIndexInformer
}

func newBindingCaches(dyn dynamic.Interface) bindingCaches {
	of := func(gvr schema.GroupVersionResource) cache.SharedIndexInformer {
		return informer(dyn, gvr, cache.Indexers{byCluster: clustersOf, byKind: kindOf}, Into[v1alpha1.ResourceBinding])
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

// Binding gives one binding from the cache.
func (t *Term) Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	if key.Namespace == "" {
		return get[v1alpha1.ResourceBinding](t.bindings.global, key.Name)
	}
	return get[v1alpha1.ResourceBinding](t.bindings.namespaced, key.String())
}

// Bindings gives all bindings from the cache, in no order.
func (t *Term) Bindings() []*v1alpha1.ResourceBinding {
	var out []*v1alpha1.ResourceBinding
	for _, i := range t.bindings.all() {
		out = append(out, list[v1alpha1.ResourceBinding](i.GetStore().List())...)
	}
	return out
}

// BindingsOn gives the bindings that choose a cluster or have something there
// still.
func (t *Term) BindingsOn(cluster string) []*v1alpha1.ResourceBinding {
	return t.bindings.by(byCluster, cluster)
}

// BindingsOf gives the bindings of a kind's objects.
func (t *Term) BindingsOf(gk schema.GroupKind) []*v1alpha1.ResourceBinding {
	return t.bindings.by(byKind, gk.String())
}

// BindingsIn gives the bindings of a namespace's objects.
func (t *Term) BindingsIn(namespace string) []*v1alpha1.ResourceBinding {
	items, err := t.bindings.namespaced.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // the index exists: informer made it
	}
	return list[v1alpha1.ResourceBinding](items)
}

// BindingAPI is where the bindings of a namespace's objects are written, or with ""
// those of objects without a namespace.
func (t *Term) BindingAPI(namespace string) dynamic.ResourceInterface {
	return t.Dynamic.Resource(v1alpha1.BindingResource(namespace)).Namespace(namespace)
}

// BindingNow reads a binding as it is now, past the cache. It is nil if there is
// none.
func (t *Term) BindingNow(ctx context.Context, key types.NamespacedName) (*v1alpha1.ResourceBinding, error) {
	u, err := t.BindingAPI(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
			return nil, fmt.Errorf("read binding %s: the control plane does not serve bindings now: %w", CacheKey(key), err)
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

// BindingIdentity is the metadata by which one binding, and no other of its name, is
// written to by server-side apply: with the UID, an apply never makes a binding that
// somebody deleted.
func BindingIdentity(b *v1alpha1.ResourceBinding) map[string]any {
	out := map[string]any{"name": b.Name, "uid": string(b.UID)}
	if b.Namespace != "" {
		out["namespace"] = b.Namespace
	}
	return out
}
