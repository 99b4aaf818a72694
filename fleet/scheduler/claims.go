package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// ReasonVolumeElsewhere means that a claim is one volume, and objects need it in another cluster.
const ReasonVolumeElsewhere = "VolumeElsewhere"

// oneVolume keeps a claim in one cluster: where it is, or where most of its users are. The others come
// there, or wait. A claim that is in several clusters already stays in all: each may have data.
func (s *scheduler) oneVolume(b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare, users []object, c *metav1.Condition) []v1alpha1.ClusterShare {
	in := map[string]bool{}
	if b != nil {
		for _, share := range b.Spec.Clusters {
			if f, joined := s.fleetSnapshot().Cluster(share.Name); joined && !f.Leaving {
				in[share.Name] = true
			}
		}
	}
	if len(in) == 0 {
		if len(shares) <= 1 {
			return shares
		}
		in[s.mostUsers(shares, users)] = true
	}
	var out []v1alpha1.ClusterShare
	var without []string
	for _, share := range shares {
		if in[share.Name] {
			out = append(out, share)
		} else {
			without = append(without, share.Name)
		}
	}
	if len(without) > 0 && b != nil {
		c.Status, c.Reason = metav1.ConditionFalse, ReasonVolumeElsewhere
		c.Message = fmt.Sprintf("it is one volume, in %s, and is needed in %s: its users wait or move there. To start elsewhere with an empty volume, delete the claim",
			clusterList(in), names.List(without))
	}
	return out
}

func clusterList(in map[string]bool) string {
	var list []string
	for name := range in {
		list = append(list, name)
	}
	slices.Sort(list)
	return names.List(list)
}

// mostUsers returns the one of some clusters where most users are, by their latest decisions.
func (s *scheduler) mostUsers(shares []v1alpha1.ClusterShare, users []object) string {
	count := map[string]int{}
	for _, user := range users {
		p, at, ok := s.Member(user)
		if !ok {
			continue
		}
		for _, share := range at {
			if count[share.Name] += 2; p.Kind.Finished(p.Object) {
				count[share.Name]--
			}
		}
	}
	best := slices.MaxFunc(shares, func(a, b v1alpha1.ClusterShare) int {
		return cmp.Or(cmp.Compare(count[a.Name], count[b.Name]), cmp.Compare(b.Name, a.Name))
	})
	return best.Name
}
