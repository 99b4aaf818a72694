package fleet

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// Policies are the Placements of all namespaces, and the ClusterPlacements.
type Policies struct {
	Placements        controllers.Cache[v1alpha1.Placement]
	ClusterPlacements controllers.Cache[v1alpha1.ClusterPlacement]
}

func newPolicies(dyn dynamic.Interface) *Policies {
	return &Policies{
		Placements:        controllers.NewCache[v1alpha1.Placement](dyn, v1alpha1.PlacementResource, controllers.CacheOptions{}),
		ClusterPlacements: controllers.NewCache[v1alpha1.ClusterPlacement](dyn, v1alpha1.ClusterPlacementResource, controllers.CacheOptions{}),
	}
}

func (p *Policies) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{p.Placements.Informer, p.ClusterPlacements.Informer}
}

// OnChange calls f when a policy is added or deleted, or its spec changes, and once for each that
// exists.
func (p *Policies) OnChange(f func()) error {
	changed := func(was, is metav1.Object) {
		if was == nil || is == nil || was.GetUID() != is.GetUID() || was.GetGeneration() != is.GetGeneration() {
			f()
		}
	}
	return errors.Join(controllers.OnChange(p.Placements.Informer, changed), controllers.OnChange(p.ClusterPlacements.Informer, changed))
}
