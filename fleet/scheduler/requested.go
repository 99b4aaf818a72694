package scheduler

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// requested says from which clusters a follower goes, by a decision for these shares,
// because people deleted what needed it there. Only the scheduler can tell: to a syncer
// a follower that nobody needs any more looks like one that a decision took away.
func (s *scheduler) requested(b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare) []v1alpha1.RequestedRemoval {
	if b == nil {
		return nil
	}
	var out []v1alpha1.RequestedRemoval
	chosen := clustersIn(shares)
	for _, r := range b.Spec.RequestedRemovals {
		if _, reported := b.State(r.Name); reported && !chosen[r.Name] {
			out = append(out, r) // it is still on its way out
		}
	}
	for _, c := range b.Spec.Clusters {
		if !chosen[c.Name] && s.bereft(b, c.Name, map[object]bool{}) {
			out = append(out, v1alpha1.RequestedRemoval{Name: c.Name, Reason: v1alpha1.RemovalUsersDeleted})
		}
	}
	return out
}

// bereft tells whether a follower that leaves a cluster does so because what needed it
// there was deleted: at least one user was, and no other that had it there was moved,
// changed, or is there still. Who its users were is known from the binding, which names
// some of many, and from nowhere else: where it is not clear the answer is no. seen ends
// circles.
func (s *scheduler) bereft(b *v1alpha1.ResourceBinding, cluster string, seen map[object]bool) bool {
	o := boundBy(b)
	share, had := b.Share(cluster)
	if seen[o] || !had || share.Reason != ReasonRequired && share.Reason != ReasonKeptPending {
		return false
	}
	seen[o] = true
	defer delete(seen, o)
	deleted := false
	for _, r := range b.Spec.RequiredBy {
		switch users, gone := s.named(r, b.Namespace); {
		case gone:
			deleted = true
		case len(users) == 0:
			return false // nobody knows what became of it
		default:
			for _, user := range users {
				stays, left := s.lost(user, cluster, seen)
				if stays {
					return false
				}
				deleted = deleted || left
			}
		}
	}
	for _, user := range s.needs.by(o) {
		if _, exists := s.Object(user.GroupKind, user.NamespacedName); !exists {
			continue // a follower names whom it follows, there or not
		}
		if stays, _ := s.lost(user, cluster, seen); stays {
			return false
		}
	}
	return deleted
}

// lost tells of a user that exists whether it is a reason why a follower is, or was, in
// a cluster that is not explained by anybody's deletion (stays), or left the cluster
// itself because of one.
func (s *scheduler) lost(user object, cluster string, seen map[object]bool) (stays, left bool) {
	ub, bound := s.Binding(user.binding())
	if !bound || seen[user] {
		return false, false
	}
	if _, asked := ub.RequestedRemoval(cluster); asked {
		return false, true
	}
	_, chosen := ub.Share(cluster)
	_, reported := ub.State(cluster)
	switch {
	case !chosen:
		return reported, false // it was moved, or never was there
	case s.bereft(ub, cluster, seen):
		return false, true // what is decided about it follows
	}
	return true, false
}

// named finds the existing objects that a binding may mean by a user's kind and name.
// gone tells that there is none, because somebody deleted it and did not ask for its
// copies to be left, which go on needing what they needed.
func (s *scheduler) named(r v1alpha1.Requirer, namespace string) (users []object, gone bool) {
	namespace = cmp.Or(r.Namespace, namespace)
	known := false
	for _, k := range s.Kinds() {
		if k.GroupVersionKind.Kind != r.Kind {
			continue
		}
		user := object{k.GroupKind(), types.NamespacedName{Namespace: namespace, Name: r.Name}}
		if k.ClusterScoped {
			user.Namespace = ""
		}
		if _, exists := s.Object(user.GroupKind, user.NamespacedName); exists {
			users = append(users, user)
			continue
		}
		ub, bound := s.Binding(user.binding())
		known = known || !bound || !orphaned(ub)
	}
	if len(users) > 0 || known {
		return users, len(users) == 0
	}
	for _, b := range s.BindingsIn(namespace) {
		// Of a type that is gone, what the bindings say is all that is left.
		if ref := b.Spec.Resource; ref.Kind == r.Kind && ref.Name == r.Name && s.TypeDeleted(ref.GroupVersionKind().GroupKind()) {
			return nil, true
		}
	}
	return nil, false
}

// orphaned tells whether the object of a binding was deleted with --cascade=orphan:
// the garbage collector took the owner off.
func orphaned(b *v1alpha1.ResourceBinding) bool {
	for _, owner := range b.OwnerReferences {
		if owner.UID == b.Spec.Resource.UID {
			return b.Annotations[v1alpha1.LeaveAnnotation] == v1alpha1.LeaveOrphan
		}
	}
	return true
}

// deletion says of which clusters an object that is gone leaves on somebody's request
// where a syncer could not tell: of all, if its type was deleted, and else of those that a
// decision had taken it out of before it was deleted itself. What is deleted where it
// runs needs no record: that it is gone is asked for live.
func (s *scheduler) deletion(b *v1alpha1.ResourceBinding) []v1alpha1.RequestedRemoval {
	gk := b.Spec.Resource.GroupVersionKind().GroupKind()
	if s.TypeVanished(gk) {
		return nil // nobody is known to have asked for that
	}
	reason := v1alpha1.RemovalObjectDeleted
	if s.TypeDeleted(gk) {
		reason = v1alpha1.RemovalTypeDeleted
	}
	var out []v1alpha1.RequestedRemoval
	for _, c := range b.Status.Clusters {
		_, chosen := b.Share(c.Name)
		_, asked := b.RequestedRemoval(c.Name)
		if !asked && (!chosen || reason == v1alpha1.RemovalTypeDeleted) {
			out = append(out, v1alpha1.RequestedRemoval{Name: c.Name, Reason: reason})
		}
	}
	return out
}
