package syncer

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// remove takes the object out of the member, or the marks off it, and then the
// entry out of the binding.
func (s *Syncer) remove(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding, m *memory) error {
	// What is to be deleted depends on this answer, so it is asked for live.
	b, decided, err := s.Leaving(ctx, b)
	if err != nil || b == nil {
		return err
	}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
	live, err := s.member.look(ctx, k, name)
	if err != nil {
		return s.reportRemoving(ctx, b, m, err)
	}
	switch {
	case live == nil || !s.ours(live, b):
		return s.removed(ctx, k, b, m)
	case b.Spec.Suspend && !s.leaving():
		until := "the policy no longer suspends it"
		if b.Spec.Manual != nil {
			until = "a plan that says so is applied (atoll plan)"
		}
		return s.reportState(ctx, b, m, v1alpha1.StateSuspended, "no longer wanted here; it is removed when "+until)
	case s.orphans(b):
		if err := s.member.release(ctx, k, live); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
		return s.removed(ctx, k, b, m)
	case live.GetDeletionTimestamp() == nil:
		if held, err := s.held(ctx, k, b, m, live, decided); held || err != nil {
			return err
		}
		if err := s.member.delete(ctx, k, live); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
	}
	// Its disappearance is an event; this is for the case that it is missed.
	s.queue.AddAfter(b.Key(), 2*time.Second)
	return s.reportRemoving(ctx, b, m, nil)
}

// held tells whether a removal has to wait: for others to be counted with it, for a
// person, or for what would go with it.
func (s *Syncer) held(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding, m *memory, live *unstructured.Unstructured, decided bool) (bool, error) {
	if definesType(k) {
		found, err := s.member.instances(ctx, live)
		if err != nil {
			return true, s.reportRemoving(ctx, b, m, err)
		}
		if found != "" {
			s.queue.AddAfter(b.Key(), 10*time.Second)
			return true, s.reportState(ctx, b, m, v1alpha1.StateHeld, fmt.Sprintf(
				"objects of this type exist in the cluster (%s), and would be deleted with it; delete them there, or leave the type there with the annotation %s=%s on this binding",
				found, v1alpha1.LeaveAnnotation, v1alpha1.LeaveOrphan))
		}
	}
	if !decided {
		return false, nil // somebody deleted exactly this
	}
	now := s.clock.Now()
	if m.leaving.IsZero() {
		// Decisions change in waves: what comes with this one is counted with it.
		m.leaving = now
	}
	if wait := m.leaving.Add(s.breaker.wave).Sub(now); wait > 0 {
		s.queue.AddAfter(b.Key(), wait)
		return true, s.reportRemoving(ctx, b, m, nil)
	}
	if s.breaker.passes(s, b.Key(), now) {
		return false, nil
	}
	return true, s.reportState(ctx, b, m, v1alpha1.StateHeld,
		"the cluster would lose too much at once; see condition DeletionsHalted of Cluster "+s.cluster)
}

// orphans tells whether what leaves the cluster is left running.
func (s *Syncer) orphans(b *v1alpha1.ResourceBinding) bool {
	if b.Annotations[v1alpha1.LeaveAnnotation] == v1alpha1.LeaveOrphan {
		return true
	}
	c, ok := s.Cluster()
	if !ok {
		return true // without a Cluster nobody said that anything may be deleted
	}
	leaving, orphan := c.Leaves()
	return leaving && orphan
}

// leaving tells whether a person has said that the cluster leaves: nothing is kept
// there then because of anything else.
func (s *Syncer) leaving() bool {
	c, ok := s.Cluster()
	return ok && c.DeletionTimestamp != nil
}

// removed is called when nothing of ours is left of the object.
func (s *Syncer) removed(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding, m *memory) error {
	s.last.Lock()
	defer s.last.Unlock()
	if b.Namespace != "" && s.lastOf(b, func(other *v1alpha1.ResourceBinding) bool { return other.Namespace == b.Namespace }) {
		if err := s.removeNamespace(ctx, b.Namespace); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
	}
	if err := s.report(ctx, b, m, nil); err != nil {
		return err
	}
	m.gone.Store(true)
	m.unsettle()
	gvk := b.Spec.Resource.GroupVersionKind()
	if s.lastOf(b, func(other *v1alpha1.ResourceBinding) bool { return other.Spec.Resource.GroupVersionKind() == gvk }) {
		s.member.unwatch(k)
	}
	return nil
}

// lastOf tells whether the cluster holds nothing else of some bindings. The caller
// holds s.last.
func (s *Syncer) lastOf(b *v1alpha1.ResourceBinding, among func(*v1alpha1.ResourceBinding) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.Bindings() {
		if !among(other) || b != nil && other.Key() == b.Key() {
			continue
		}
		m := s.known[other.Key()]
		if m == nil || !m.gone.Load() {
			return false
		}
	}
	return true
}
