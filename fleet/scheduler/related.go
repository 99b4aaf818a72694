package scheduler

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/groups"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// related has which objects belong together.
type related struct {
	mu    sync.Mutex
	index *groups.Index[object]
}

func newRelated() *related {
	return &related{index: groups.NewIndex[object]()}
}

// set records what an object says about its group, and returns the objects that this may affect.
func (r *related) set(o object, k interpret.KindInfo, obj *unstructured.Unstructured) []object {
	facts := factsOf(k, obj)
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.GroupKind == claimKind() {
		return r.index.SetClaim(o.Namespace, o.Name, interpret.SharedClaim(obj))
	}
	return r.index.Set(o.Namespace, o, facts)
}

// delete forgets an object, and returns the objects that this may affect.
func (r *related) delete(o object) []object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.GroupKind == claimKind() {
		return r.index.DeleteClaim(o.Namespace, o.Name)
	}
	return r.index.Delete(o.Namespace, o)
}

// dependents returns the objects that can only run where an object is.
func (r *related) dependents(o object) []object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.index.Dependents(o.Namespace, o)
}

// GroupOf returns the group of an object.
func (s *scheduler) GroupOf(o object) groups.Group[object] {
	s.related.mu.Lock()
	defer s.related.mu.Unlock()
	return s.related.index.Of(o.Namespace, o)
}

// Member returns an object of a group and the clusters of its latest decision.
func (s *scheduler) Member(o object) (Placed, []v1alpha1.ClusterShare, bool) {
	k, served := s.Kinds.Get(o.GroupKind)
	obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
	if !served || !exists || obj.GetDeletionTimestamp() != nil || s.staysHome(k, obj) {
		return Placed{}, nil, false
	}
	b, bound := s.assumed.Get(o.binding())
	if !bound || b.DeletionTimestamp != nil || b.Spec.Resource.UID != obj.GetUID() { // or it is of a predecessor
		return Placed{Kind: k, Object: obj}, nil, true
	}
	return Placed{Kind: k, Object: obj}, b.Decided(), true
}

// ClaimIn returns the clusters that a claim is bound to.
func (s *scheduler) ClaimIn(namespace, name string) (clusters []string) {
	b, bound := s.assumed.Get(object{claimKind(), types.NamespacedName{Namespace: namespace, Name: name}}.binding())
	if !bound || b.DeletionTimestamp != nil {
		return nil
	}
	return clusterNames(b.Decided())
}

// MountedBy returns the objects in clusters whose pods mount a claim, and are not finished.
func (s *scheduler) MountedBy(namespace, claim string) (out []object) {
	for _, user := range s.needs.usersOf(object{claimKind(), types.NamespacedName{Namespace: namespace, Name: claim}}) {
		k, served := s.Kinds.Get(user.GroupKind)
		obj, exists := s.Objects.Get(user.GroupKind, user.NamespacedName)
		if served && exists && obj.GetDeletionTimestamp() == nil && !s.staysHome(k, obj) && !k.Finished(obj) && slices.Contains(factsOf(k, obj).Claims, claim) {
			out = append(out, user)
		}
	}
	return out
}

func clusterNames(shares []v1alpha1.ClusterShare) (names []string) {
	for _, c := range shares {
		names = append(names, c.Name)
	}
	return names
}

// requeueGroup queues the members of a group that a decision moves to another cluster than theirs: they
// may have to move along.
func (s *scheduler) requeueGroup(a *Result, b *v1alpha1.ResourceBinding) {
	if a.Together == nil || b == nil || a.Choice.Err != nil || slices.Equal(clusterNames(b.Decided()), clusterNames(a.Shares)) {
		return
	}
	for _, c := range a.Together.Members {
		if !slices.Equal(c.Clusters, clusterNames(a.Shares)) {
			s.queue.Add(c.object)
		}
	}
}
