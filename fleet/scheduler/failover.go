package scheduler

import (
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// removalsInProgress returns the requested removals of a binding that are not finished: the cluster still has the
// object, and a decision for these shares does not choose it again.
func removalsInProgress(b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare) (out []v1alpha1.RequestedRemoval) {
	if b == nil {
		return nil
	}
	chosen := clustersIn(shares)
	for _, r := range b.Spec.RequestedRemovals {
		if _, reported := b.State(r.Name); reported && !chosen[r.Name] {
			out = append(out, r)
		}
	}
	return out
}

// withReplaced adds requests for the clusters that an object leaves, by a decision for these shares, because others
// take it over. Those that do not have the object need none.
func withReplaced(requested []v1alpha1.RequestedRemoval, b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare, left []string) []v1alpha1.RequestedRemoval {
	if b == nil {
		return requested
	}
	chosen := clustersIn(shares)
	for _, name := range left {
		asked := slices.ContainsFunc(requested, func(r v1alpha1.RequestedRemoval) bool { return r.Name == name })
		if _, reported := b.State(name); reported && !chosen[name] && !asked {
			requested = append(requested, v1alpha1.RequestedRemoval{Name: name, Reason: v1alpha1.RemovalReplaced})
		}
	}
	return requested
}

// withoutReplaced returns the requests for an object that leaves all clusters, so that none takes it over. Where
// users failed over and were then deleted, that is the request.
func withoutReplaced(requested []v1alpha1.RequestedRemoval) (out []v1alpha1.RequestedRemoval) {
	deleted := slices.ContainsFunc(requested, func(r v1alpha1.RequestedRemoval) bool { return r.Reason == v1alpha1.RemovalUsersDeleted })
	for _, r := range requested {
		if r.Reason == v1alpha1.RemovalReplaced {
			if !deleted {
				continue
			}
			r.Reason = v1alpha1.RemovalUsersDeleted
		}
		out = append(out, r)
	}
	return out
}

// withRequests replaces or adds requests by cluster.
func withRequests(requested, others []v1alpha1.RequestedRemoval) []v1alpha1.RequestedRemoval {
	out := slices.DeleteFunc(slices.Clone(requested), func(r v1alpha1.RequestedRemoval) bool {
		return slices.ContainsFunc(others, func(o v1alpha1.RequestedRemoval) bool { return o.Name == r.Name })
	})
	return append(out, others...)
}

// setFailover sets what a decision says about clusters that are or were unreachable, or in which the object is not Healthy.
func (p *bindingUpdate) setFailover(a *Result, b *v1alpha1.ResourceBinding) {
	p.evicted, p.left, p.home = a.Decision.Evicted, slices.Concat(a.Decision.Evicted, a.Decision.Degraded, a.Decision.Home.Left), nextHome(a, b)
	p.requested = withReplaced(removalsInProgress(b, a.Shares), b, a.Shares, p.left)
	p.why += a.returnText()
}

// withRequestsOfUsers adds the requests with which workloads leave clusters that still have them. Objects that these
// need stay until then, and leave with the same request, unless another user stays there: a Service with a request exports
// no endpoints (multicluster.Exports).
func (s *scheduler) withRequestsOfUsers(requested []v1alpha1.RequestedRemoval, users []object) []v1alpha1.RequestedRemoval {
	for _, user := range users {
		ub, bound := s.Bindings.Get(user.binding())
		if !bound {
			continue
		}
		for _, cluster := range s.stillIn(user, ub) {
			r, asked := ub.RequestedRemoval(cluster)
			if asked && !slices.ContainsFunc(requested, func(o v1alpha1.RequestedRemoval) bool { return o.Name == cluster }) && !s.usedIn(cluster, users) {
				requested = append(requested, r)
			}
		}
	}
	return requested
}

// usedIn reports whether one of some users is to be in a cluster.
func (s *scheduler) usedIn(cluster string, users []object) bool {
	return slices.ContainsFunc(users, func(user object) bool {
		b, bound := s.Bindings.Get(user.binding())
		if !bound {
			return false
		}
		_, chosen := b.Share(cluster)
		return chosen
	})
}
