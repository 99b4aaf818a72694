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

// related has which objects belong together, and the latest decisions about them.
type related struct {
	mu    sync.Mutex
	index *groups.Index[object]
	// latest are decisions that the cached bindings may not have yet: the next member of a group must not
	// be placed as if it were the first.
	latest map[object]latestDecision
}

// latestDecision holds until the binding has another generation.
type latestDecision struct {
	generation int64 // of the binding that it replaces, or 0
	shares     []v1alpha1.ClusterShare
}

func newRelated() *related {
	return &related{index: groups.NewIndex[object](), latest: map[object]latestDecision{}}
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
	delete(r.latest, o)
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

// decided records a decision about an object with the binding b, which may be nil.
func (r *related) decided(o object, b *v1alpha1.ResourceBinding, shares []v1alpha1.ClusterShare) {
	d := latestDecision{shares: shares}
	if b != nil {
		d.generation = b.Generation
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest[o] = d
}

// sharesOf returns the shares of an object by the latest decision. b is its cached binding.
func (r *related) sharesOf(o object, b *v1alpha1.ResourceBinding) []v1alpha1.ClusterShare {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, decided := r.latest[o]
	switch {
	case b == nil && decided && d.generation == 0:
		return d.shares
	case b == nil:
		return nil
	case decided && d.generation == b.Generation && b.Spec.Manual == nil: // a manual one changes when a plan is applied
		return d.shares
	}
	return b.Decided()
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
	b, _ := s.Bindings.Get(o.binding())
	if b != nil && (b.DeletionTimestamp != nil || b.Spec.Resource.UID != obj.GetUID()) {
		b = nil // of a predecessor
	}
	return Placed{Kind: k, Object: obj}, s.related.sharesOf(o, b), true
}

// ClaimIn returns the clusters that a claim is bound to.
func (s *scheduler) ClaimIn(namespace, name string) (clusters []string) {
	b, bound := s.Bindings.Get(object{claimKind(), types.NamespacedName{Namespace: namespace, Name: name}}.binding())
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
