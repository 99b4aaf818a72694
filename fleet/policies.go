package fleet

import (
	"errors"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Policies are the Placements of all namespaces, the ClusterPlacements, and the VolumePolicies.
type Policies struct {
	Placements        controllers.Cache[v1alpha1.Placement]
	ClusterPlacements controllers.Cache[v1alpha1.ClusterPlacement]
	Volumes           controllers.Cache[v1alpha1.VolumePolicy]
}

func newPolicies(dyn dynamic.Interface) *Policies {
	return &Policies{
		Placements:        controllers.NewCache[v1alpha1.Placement](dyn, v1alpha1.PlacementResource, controllers.CacheOptions{}),
		ClusterPlacements: controllers.NewCache[v1alpha1.ClusterPlacement](dyn, v1alpha1.ClusterPlacementResource, controllers.CacheOptions{}),
		Volumes:           controllers.NewCache[v1alpha1.VolumePolicy](dyn, v1alpha1.VolumePolicyResource, controllers.CacheOptions{}),
	}
}

func (p *Policies) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{p.Placements.Informer, p.ClusterPlacements.Informer, p.Volumes.Informer}
}

// OnChange calls f when a Placement or ClusterPlacement is added or deleted, or another content of it is in effect or approved, and once
// for each that exists.
func (p *Policies) OnChange(f func()) error {
	changed := func(was, is placement.Subject) {
		if was.Meta.UID != is.Meta.UID || was.Inputs() != is.Inputs() {
			f()
		}
	}
	return errors.Join(p.Placements.OnChange(func(was, is *v1alpha1.Placement) {
		if was == nil || is == nil {
			f()
			return
		}
		changed(placement.SubjectOf(was), placement.SubjectOf(is))
	}), p.ClusterPlacements.OnChange(func(was, is *v1alpha1.ClusterPlacement) {
		if was == nil || is == nil {
			f()
			return
		}
		changed(placement.SubjectOfCluster(was), placement.SubjectOfCluster(is))
	}))
}
