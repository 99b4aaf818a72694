package scheduler

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// boundsReplicas reports whether objects of a kind limit the replicas of their users, as an
// autoscaler and a disruption budget do.
func boundsReplicas(gk schema.GroupKind) bool {
	return gk == interpret.AutoscalerKind() || gk == budgetKind()
}

// withReplicas sets, for an object that limits the replicas of its users, the number of these
// replicas per cluster: its limits are divided in that proportion. If a user is not divided,
// nothing is.
func withReplicas(shares []v1alpha1.ClusterShare, users [][]v1alpha1.ClusterShare) []v1alpha1.ClusterShare {
	total := map[string]int32{}
	for _, user := range users {
		for _, c := range user {
			if c.Replicas == nil {
				return shares
			}
			total[c.Name] += *c.Replicas
		}
	}
	for i := range shares {
		if n, ok := total[shares[i].Name]; ok {
			shares[i].Replicas = &n
		}
	}
	return shares
}

// wantedOf returns how many replicas some users are to have together, if one of them is in transition and more of them
// may run meanwhile; 0 otherwise.
func (s *scheduler) wantedOf(users []object) (wanted int32) {
	moving := false
	for _, user := range users {
		b, bound := s.Bindings.Get(user.binding())
		if !bound {
			continue
		}
		moving = moving || b.Spec.Transition != nil
		decided := int32(0)
		for _, c := range b.Decided() {
			if c.Replicas != nil {
				decided += *c.Replicas
			}
		}
		if b.Spec.ScaledBy != nil {
			if obj, exists := s.Objects.Get(user.GroupKind, user.NamespacedName); exists {
				if k, served := s.Kinds.Get(user.GroupKind); served {
					n, _ := k.Replicas(obj) // the count that its autoscalers decided
					decided = max(decided, n)
				}
			}
		}
		wanted += decided
	}
	if !moving {
		return 0
	}
	return wanted
}

func (s *scheduler) sharesOf(users []object) (out [][]v1alpha1.ClusterShare) {
	for _, user := range users {
		if ub, ok := s.Bindings.Get(user.binding()); ok {
			out = append(out, ub.Spec.Clusters)
		}
	}
	return out
}
