package fleet

import (
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// policyCaches hold the Placements of all namespaces, and the ClusterPlacements.
type policyCaches struct {
	namespaced, cluster cache.SharedIndexInformer
}

func newPolicyCaches(dyn dynamic.Interface) policyCaches {
	return policyCaches{
		namespaced: informer(dyn, v1alpha1.PlacementResource, nil, DecodeAs[v1alpha1.Placement]),
		cluster:    informer(dyn, v1alpha1.ClusterPlacementResource, nil, DecodeAs[v1alpha1.ClusterPlacement]),
	}
}

func (c policyCaches) all() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.namespaced, c.cluster}
}

// Placements returns all Placements from the cache, in no particular order.
func (s *Session) Placements() []*v1alpha1.Placement {
	return list[v1alpha1.Placement](s.policies.namespaced.GetStore().List())
}

// ClusterPlacements returns all ClusterPlacements from the cache, in no particular order.
func (s *Session) ClusterPlacements() []*v1alpha1.ClusterPlacement {
	return list[v1alpha1.ClusterPlacement](s.policies.cluster.GetStore().List())
}

// OnPolicy calls f when a policy is added or deleted, or its spec changes, and once for each that
// exists.
func (s *Session) OnPolicy(f func()) error {
	err := AddHandler(s.policies.namespaced, func(was, is *v1alpha1.Placement) {
		if was == nil || is == nil || was.UID != is.UID || was.Generation != is.Generation {
			f()
		}
	})
	if err != nil {
		return err
	}
	return AddHandler(s.policies.cluster, func(was, is *v1alpha1.ClusterPlacement) {
		if was == nil || is == nil || was.UID != is.UID || was.Generation != is.Generation {
			f()
		}
	})
}
