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

// transferOf returns the transfer of a claim that goes to another cluster with one of its users, and that user; nil if it
// does not.
func (s *scheduler) transferOf(o object, users []object) (*v1alpha1.VolumeTransfer, object) {
	for _, user := range users {
		ub, bound := s.Bindings.Get(user.binding())
		if o.GroupKind != claimKind() || !bound || user.Namespace != o.Namespace {
			continue
		}
		for i := range ub.Spec.Volumes {
			if t := &ub.Spec.Volumes[i]; t.Claim == o.Name && t.ClaimUID != "" {
				return t, user
			}
		}
	}
	return nil, object{}
}

// goesAlong returns the shares of a claim while its volume goes to another cluster. The new cluster gets the claim when
// the syncer there has made one that leads to the volume: another one would get an empty volume.
func (s *scheduler) goesAlong(b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare, t *v1alpha1.VolumeTransfer, user object) []v1alpha1.ClusterShare {
	kept, comes, leaves := t.From, false, ""
	switch t.Phase {
	case v1alpha1.VolumeAttached:
		comes = true
	case v1alpha1.VolumeRemoving, v1alpha1.VolumeSettling:
		kept, comes, leaves = t.To, true, t.From
	case v1alpha1.VolumeCleaning:
		leaves = t.To
	}
	if t.Replication != nil {
		leaves = "" // both clusters keep their copies
	}
	if b != nil {
		if _, has := b.Share(t.To); has {
			comes = true
		}
		shares = s.withKept(shares, b, true)
	}
	shares = slices.DeleteFunc(slices.Clone(shares), func(c v1alpha1.ClusterShare) bool { return c.Name == leaves || c.Name == t.To && !comes })
	if !clustersIn(shares)[kept] {
		shares = append(shares, v1alpha1.ClusterShare{Name: kept, Reason: ReasonRequired, Message: fmt.Sprintf("needed by %s %s", user.Kind, user.Name)})
	}
	return shares
}

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
		switch {
		case in[share.Name]:
			out = append(out, share)
		case s.anyShare(users, share.Name):
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

// anyShare reports whether one of some objects is to be in a cluster.
func (s *scheduler) anyShare(users []object, cluster string) bool {
	return slices.ContainsFunc(users, func(user object) bool {
		ub, bound := s.Bindings.Get(user.binding())
		_, has := ub.Share(cluster)
		return bound && has
	})
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
