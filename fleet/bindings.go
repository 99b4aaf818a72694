package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// Bindings are the bindings of namespaced objects and those of cluster-scoped objects.
type Bindings struct {
	namespaced, global controllers.Cache[v1alpha1.ResourceBinding]
}

// Names of the indexes of bindings.
const (
	byCluster = "cluster"
	byKind    = "kind"
)

func newBindings(dyn dynamic.Interface) *Bindings {
	of := func(gvr schema.GroupVersionResource) controllers.Cache[v1alpha1.ResourceBinding] {
		return controllers.NewCache[v1alpha1.ResourceBinding](dyn, gvr, controllers.CacheOptions{Indexers: cache.Indexers{byCluster: clustersOf, byKind: kindOf}})
	}
	return &Bindings{namespaced: of(v1alpha1.ResourceBindingResource), global: of(v1alpha1.ClusterResourceBindingResource)}
}

func (b *Bindings) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{b.namespaced.Informer, b.global.Informer}
}

func clustersOf(obj any) ([]string, error) {
	b, ok := obj.(*v1alpha1.ResourceBinding)
	if !ok {
		return nil, nil
	}
	names := make([]string, 0, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		names = append(names, c.Name)
	}
	for _, c := range b.Status.Clusters {
		if _, chosen := b.Share(c.Name); !chosen {
			names = append(names, c.Name)
		}
	}
	return names, nil
}

// kindOf returns the kind of a binding's object.
func kindOf(obj any) ([]string, error) {
	if b, ok := obj.(*v1alpha1.ResourceBinding); ok {
		return []string{b.Spec.Resource.GroupVersionKind().GroupKind().String()}, nil
	}
	return nil, nil
}

// Get returns one binding.
func (b *Bindings) Get(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	if key.Namespace == "" {
		return b.global.Get(key.Name)
	}
	return b.namespaced.Get(key.String())
}

// All returns all bindings, in no particular order.
func (b *Bindings) All() []*v1alpha1.ResourceBinding {
	return slices.Concat(b.namespaced.All(), b.global.All())
}

// On returns the bindings that choose a cluster or still have an object there.
func (b *Bindings) On(cluster string) []*v1alpha1.ResourceBinding { return b.by(byCluster, cluster) }

// Of returns the bindings of a kind's objects.
func (b *Bindings) Of(gk schema.GroupKind) []*v1alpha1.ResourceBinding {
	return b.by(byKind, gk.String())
}

// In returns the bindings of a namespace's objects.
func (b *Bindings) In(namespace string) []*v1alpha1.ResourceBinding {
	return b.namespaced.In(namespace)
}

func (b *Bindings) by(index, value string) []*v1alpha1.ResourceBinding {
	return slices.Concat(b.namespaced.By(index, value), b.global.By(index, value))
}

// OnChange calls f for each binding, as Clusters.OnChange does. Calls are sequential for the bindings
// of namespaced objects, and for those of cluster-scoped objects.
func (b *Bindings) OnChange(f func(was, is *v1alpha1.ResourceBinding)) error {
	return errors.Join(b.namespaced.OnChange(f), b.global.OnChange(f))
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
			return nil, fmt.Errorf("read binding %s: the control plane does not serve bindings at the moment: %w", controllers.CacheKey(key), err)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read binding %s: %w", controllers.CacheKey(key), err)
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("read binding %s: %w", controllers.CacheKey(key), err)
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
