package scheduler

import (
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

func requirers(o object, users []object) []v1alpha1.Requirer {
	var out []v1alpha1.Requirer
	for _, user := range users[:min(len(users), v1alpha1.MaxRequirers-1)] { // one is left for the namespace
		r := v1alpha1.Requirer{Kind: user.Kind, Name: user.Name}
		if user.Namespace != o.Namespace {
			r.Namespace = user.Namespace
		}
		out = append(out, r)
	}
	return out
}

// withUsers adds the clusters of an object's users.
func (s *scheduler) withUsers(shares []v1alpha1.ClusterShare, users []object) []v1alpha1.ClusterShare {
	have := clustersIn(shares)
	for _, user := range users {
		ub, ok := s.Bindings.Get(user.binding())
		if !ok {
			continue
		}
		for _, c := range ofUser(ub.Spec.Clusters) {
			if !have[c.Name] {
				have[c.Name] = true
				shares = append(shares, v1alpha1.ClusterShare{Name: c.Name, Reason: ReasonRequired,
					Message: fmt.Sprintf("needed by %s %s", user.Kind, user.Name)})
			}
		}
		for _, cluster := range s.stillIn(user, ub) {
			if !have[cluster] {
				have[cluster] = true
				shares = append(shares, v1alpha1.ClusterShare{Name: cluster, Reason: ReasonRequired,
					Message: fmt.Sprintf("needed by %s %s, which has not left yet", user.Kind, user.Name)})
			}
		}
	}
	return shares
}

// stillIn returns the clusters that have a copy of a workload which is not to be there any more. Its pods need their
// configuration until they are gone. Objects that only follow do not count: two that need each other would stay.
func (s *scheduler) stillIn(user object, b *v1alpha1.ResourceBinding) (clusters []string) {
	if k, served := s.Kinds.Get(user.GroupKind); !served || !k.Placed {
		return nil
	}
	for _, state := range b.Status.Clusters {
		if _, chosen := b.Share(state.Name); chosen || state.UID == "" {
			continue
		}
		if c, joined := s.Clusters.Get(state.Name); joined && c.DeletionTimestamp == nil {
			clusters = append(clusters, state.Name)
		}
	}
	return clusters
}

// ofUser returns the clusters in which a user takes its dependencies along. Where it only is because
// other workloads of its namespace are, nothing uses it yet: a webhook that followed its Service to a
// cluster without the Service's pods would reject all requests. An object that is nowhere else takes
// everything along: an operator there may create its pods.
func ofUser(shares []v1alpha1.ClusterShare) []v1alpha1.ClusterShare {
	if used := slices.DeleteFunc(slices.Clone(shares), func(c v1alpha1.ClusterShare) bool { return c.Reason == ReasonConfiguration }); len(used) > 0 {
		return used
	}
	return shares
}

// usersOf returns the existing users of an object, and whether the placement of some of them is
// not known yet.
func (s *scheduler) usersOf(o object) (users []object, undecided bool) {
	for _, user := range s.needs.usersOf(o) {
		if !s.mayUse(user, o) || !s.isRooted(user, map[object]bool{o: true}) {
			continue
		}
		ub, bound := s.Bindings.Get(user.binding())
		if bound && ub.Spec.Dependencies == v1alpha1.DependenciesStay {
			continue
		}
		users = append(users, user)
		undecided = undecided || !bound || ub.DeletionTimestamp != nil
	}
	return users, undecided
}

// isRooted reports whether an object has a reason of its own to be in a cluster: it is placed,
// or keeps data where it is, or has a user that is rooted. Two objects that only need each
// other keep each other nowhere. seen ends cycles.
func (s *scheduler) isRooted(o object, seen map[object]bool) bool {
	if seen[o] {
		return false
	}
	seen[o] = true
	k, served := s.Kinds.Get(o.GroupKind)
	if served && s.isDecided(k, o) {
		return true
	}
	obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
	if !served || !exists || s.staysHome(k, obj) {
		return false
	}
	if k.Placed {
		return true
	}
	if b, bound := s.Bindings.Get(o.binding()); !bound {
		return false // a follower without users
	} else if k.KeepsData && len(b.Spec.Clusters) > 0 || s.snapshot().Choose(k, obj).Explicit {
		return true
	}
	if s.goesWithNamespace(k, obj) {
		if clusters, pending := s.use.clusters(o.Namespace); len(clusters) > 0 || pending {
			return true
		}
	}
	for _, user := range s.needs.usersOf(o) {
		if s.mayUse(user, o) && s.isRooted(user, seen) {
			return true
		}
	}
	return false
}

// isDecided reports whether an object is a workload that has been placed already. It decodes nothing: a
// ServiceAccount may have hundreds of users, and each of their changes leads here. If the object is no longer to be placed, its own
// reconcile withdraws the binding, and the event of that leads here again.
func (s *scheduler) isDecided(k interpret.KindInfo, o object) bool {
	if !k.Placed {
		return false
	}
	is, exists := s.Objects.Metadata(o.GroupKind, o.NamespacedName)
	b, bound := s.Bindings.Get(o.binding())
	return exists && bound && b.DeletionTimestamp == nil && b.Spec.Resource.UID == is.GetUID()
}
