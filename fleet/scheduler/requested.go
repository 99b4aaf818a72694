package scheduler

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// requestedRemovals returns the clusters that a follower leaves, by a decision for these
// shares, because users deleted the objects that needed it there, or because these failed over.
// Only the scheduler can know: to a syncer, a follower without users looks like one that a
// decision removed.
func (s *scheduler) requestedRemovals(b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare) []v1alpha1.RequestedRemoval {
	if b == nil {
		return nil
	}
	out := removalsInProgress(b, shares)
	chosen := clustersIn(shares)
	for _, c := range b.Spec.Clusters {
		if chosen[c.Name] || slices.ContainsFunc(out, func(r v1alpha1.RequestedRemoval) bool { return r.Name == c.Name }) {
			continue
		}
		if reason := s.lostUsers(b, c.Name, map[object]bool{}); reason != "" {
			out = append(out, v1alpha1.RequestedRemoval{Name: c.Name, Reason: reason})
		}
	}
	if len(shares) == 0 {
		return withoutReplaced(out)
	}
	return out
}

// lostUsers returns why a follower leaves a cluster, as the reason of a request: because its users
// there were deleted, or because they were, and others failed over. At least one was, and no other
// user was moved or changed, or is still there. The previous users are known only from the
// binding, which names at most some of many. In doubt the result is "". seen ends cycles.
func (s *scheduler) lostUsers(b *v1alpha1.ResourceBinding, cluster string, seen map[object]bool) (reason string) {
	o := boundBy(b)
	share, had := b.Share(cluster)
	if seen[o] || !had || share.Reason != ReasonRequired && share.Reason != ReasonConfiguration && share.Reason != ReasonKeptPending {
		return ""
	}
	seen[o] = true
	defer delete(seen, o)
	add := func(left string) {
		if reason == "" || left == v1alpha1.RemovalReplaced {
			reason = left
		}
	}
	for _, r := range b.Spec.RequiredBy {
		if r == namespaceRequirer(b.Namespace) {
			for _, user := range s.needs.workloadsOf(b.Namespace) {
				stays, left := s.checkUser(user, cluster, seen)
				if stays {
					return ""
				}
				if left == v1alpha1.RemovalReplaced {
					add(left)
				}
			}
			if share.Reason == ReasonConfiguration {
				add(v1alpha1.RemovalUsersDeleted)
			}
			continue
		}
		switch users, gone := s.findUsers(r, b.Namespace); {
		case gone:
			add(v1alpha1.RemovalUsersDeleted)
		case len(users) == 0:
			return "" // it is unknown what happened to the user
		default:
			for _, user := range users {
				stays, left := s.checkUser(user, cluster, seen)
				if stays {
					return ""
				}
				add(left)
			}
		}
	}
	for _, user := range s.needs.usersOf(o) {
		if _, exists := s.Objects.Get(user.GroupKind, user.NamespacedName); !exists || !s.mayUse(user, o) {
			continue // a follower names its users whether they exist or not
		}
		if stays, _ := s.checkUser(user, cluster, seen); stays {
			return ""
		}
	}
	return reason
}

// checkUser examines an existing user of a follower in a cluster. stays reports that the user
// is or was a reason for the follower that no request explains; left is the reason of the request
// with which the user itself left the cluster, or "".
func (s *scheduler) checkUser(user object, cluster string, seen map[object]bool) (stays bool, left string) {
	ub, bound := s.Bindings.Get(user.binding())
	if seen[user] {
		return false, ""
	}
	if !bound {
		if s.departed.left(user, cluster, s.Clock.Now()) {
			left = v1alpha1.RemovalUsersDeleted
		}
		return false, left
	}
	_, chosen := ub.Share(cluster)
	if asked, is := ub.RequestedRemoval(cluster); is && !(chosen && asked.Reason == v1alpha1.RemovalReplaced) {
		return false, asked.Reason
	}
	_, reported := ub.State(cluster)
	if !chosen {
		return reported, "" // it was moved, or was never there
	}
	if left := s.lostUsers(ub, cluster, seen); left != "" {
		return false, left // its own decision will follow
	}
	return true, ""
}

// findUsers returns the existing objects that a binding may mean by a user's kind and name.
// gone reports that no such object exists because it was deleted, without a request to orphan
// its copies, which would still need their dependencies.
func (s *scheduler) findUsers(r v1alpha1.Requirer, namespace string) (users []object, gone bool) {
	namespace = cmp.Or(r.Namespace, namespace)
	known := false
	for _, k := range s.Kinds.All() {
		if k.GroupVersionKind.Kind != r.Kind {
			continue
		}
		user := object{k.GroupKind(), types.NamespacedName{Namespace: namespace, Name: r.Name}}
		if k.ClusterScoped {
			user.Namespace = ""
		}
		if _, exists := s.Objects.Get(user.GroupKind, user.NamespacedName); exists {
			users = append(users, user)
			continue
		}
		ub, bound := s.Bindings.Get(user.binding())
		known = known || !bound || !isOrphaned(ub)
	}
	if len(users) > 0 || known {
		return users, len(users) == 0
	}
	for _, b := range s.Bindings.In(namespace) {
		// If a type is gone, only the bindings know its objects.
		if ref := b.Spec.Resource; ref.Kind == r.Kind && ref.Name == r.Name && s.Types.Deleted(ref.GroupVersionKind().GroupKind()) {
			return nil, true
		}
	}
	return nil, false
}

// isOrphaned reports whether the object of a binding was deleted with --cascade=orphan: the
// garbage collector removed the owner reference.
func isOrphaned(b *v1alpha1.ResourceBinding) bool {
	for _, owner := range b.OwnerReferences {
		if owner.UID == b.Spec.Resource.UID {
			return b.Annotations[v1alpha1.LeaveAnnotation] == v1alpha1.LeaveOrphan
		}
	}
	return true
}

// requestedByDeletion returns the clusters that a deleted object leaves on request where a
// syncer could not know that: all of them if its type was deleted, otherwise those that a
// decision had removed before the object was deleted. A deleted object that is still placed in
// a cluster needs no record there: the syncer confirms the deletion with a live read.
func (s *scheduler) requestedByDeletion(b *v1alpha1.ResourceBinding) []v1alpha1.RequestedRemoval {
	gk := b.Spec.Resource.GroupVersionKind().GroupKind()
	if s.Types.Vanished(gk) {
		return nil // no request is known
	}
	reason := v1alpha1.RemovalObjectDeleted
	if s.Types.Deleted(gk) {
		reason = v1alpha1.RemovalTypeDeleted
	}
	var out []v1alpha1.RequestedRemoval
	for _, c := range b.Status.Clusters {
		_, chosen := b.Share(c.Name)
		request, asked := b.RequestedRemoval(c.Name)
		asked = asked && request.Reason != v1alpha1.RemovalReplaced // that waits for other clusters, which have nothing then
		if !asked && (!chosen || reason == v1alpha1.RemovalTypeDeleted) {
			out = append(out, v1alpha1.RequestedRemoval{Name: c.Name, Reason: reason})
		}
	}
	return out
}
