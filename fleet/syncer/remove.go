package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// remove deletes the member's object, or removes Atoll's labels from it, and then removes the
// entry from the binding.
func (s *Syncer) remove(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) error {
	// The answer decides about a deletion, so it comes from a live read.
	removal, err := s.ConfirmRemoval(ctx, b)
	if err != nil || removal.Binding == nil {
		return err
	}
	b = removal.Binding
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
	live, err := s.member.getForRemoval(ctx, k, name)
	if lacksPermission(err) && (m.entry == nil || m.entry.UID == "") {
		return s.leaveUnwritten(ctx, k, b, m, err)
	}
	if err != nil {
		return s.reportRemoving(ctx, b, m, err)
	}
	switch {
	case live == nil || !s.owns(live, b):
		return s.finishRemoval(ctx, k, b, m)
	case b.Spec.Suspend && !s.clusterLeaving():
		until := "the policy no longer suspends it"
		if b.Spec.Manual != nil {
			until = "a plan that removes it is applied (see atoll plan)"
		}
		return s.reportState(ctx, b, m, v1alpha1.StateSuspended, "no longer placed here; it will be removed when "+until)
	case s.shouldOrphan(b):
		if err := s.member.release(ctx, k, live); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
		s.metrics.wrote(s.cluster, operationRelease)
		if m.drain != nil {
			s.endDrain(ctx, k, b, m) // its pods stay
		}
		return s.finishRemoval(ctx, k, b, m)
	case live.GetDeletionTimestamp() == nil && removal.Waits != "":
		return s.awaitReplacement(ctx, b, m, removal.Waits)
	case live.GetDeletionTimestamp() == nil:
		if held, err := s.holdRemoval(ctx, k, b, m, live, removal.Decided); held || err != nil {
			return err
		}
		if err := s.member.delete(ctx, k, live); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
		s.metrics.wrote(s.cluster, operationDelete)
	}
	s.checkGone(b, m)
	return s.reportState(ctx, b, m, v1alpha1.StateRemoving, holders(live))
}

// leaveUnwritten ends the removal of an object that Atoll never saw in the cluster, and may not read there. Without the permission,
// it could not be written either; to wait for it would keep the object, and its namespace, in Atoll for as long. If it exists
// all the same, it stays.
func (s *Syncer) leaveUnwritten(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record, cause error) error {
	s.log.Warn("an object is no longer placed in the cluster, which permits no read of it; it was never seen there, and is left as it is",
		"object", b.Spec.Resource.Kind+" "+b.Namespace+"/"+b.Spec.Resource.Name, "error", cause)
	s.Event(b, corev1.EventTypeWarning, "NotReadable", "Cluster "+s.cluster+" permits no read of the object, which was never seen there: if it exists, it stays")
	return s.finishRemoval(ctx, k, b, m)
}

// awaitReplacement reports what the removal of an object waits for that other clusters have taken over. A change
// of the binding tries it again. So does a timer, because the object may also wait for others.
func (s *Syncer) awaitReplacement(ctx context.Context, b *v1alpha1.ResourceBinding, m *record, waits string) error {
	s.checkGone(b, m)
	return s.reportState(ctx, b, m, v1alpha1.StateAwaitsReplacement, "other clusters have taken it over, and it is removed here when that is done: "+waits)
}

// checkGone schedules a check whether an object that is to leave is gone, or may go. That causes an event;
// the checks are for a missed one, and become rare, because a finalizer can hold an object for hours.
func (s *Syncer) checkGone(b *v1alpha1.ResourceBinding, m *record) {
	s.queue.AddAfter(b.Key(), min(2*time.Second<<min(m.goneChecks, 10), maxBackoff))
	m.goneChecks++
}

// holders says what keeps an object that is being deleted; "" if nothing does for long.
func holders(live *unstructured.Unstructured) string {
	finalizers := live.GetFinalizers()
	if live.GetDeletionTimestamp() == nil || len(finalizers) == 0 {
		return ""
	}
	return "it is being deleted in the cluster, and stays until these finalizers are removed there: " + strings.Join(finalizers, ", ")
}

// returnWindows is how many batch windows the removal of an object waits that other clusters have taken over.
const returnWindows = 10

// holdRemoval reports whether a removal has to wait: for others to be counted with it, for another
// decision, for an approval, or because it would delete further objects.
func (s *Syncer) holdRemoval(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record, live *unstructured.Unstructured, decided bool) (bool, error) {
	if definesType(k) {
		found, err := s.member.instances(ctx, live)
		if err != nil {
			return true, s.reportRemoving(ctx, b, m, err)
		}
		if found != "" {
			s.queue.AddAfter(b.Key(), 10*time.Second)
			return true, s.reportState(ctx, b, m, v1alpha1.StateHeld, fmt.Sprintf(
				"objects of this type exist in the cluster (%s) and would be deleted with it; delete them there, or keep the type there with the annotation %s=%s on this binding",
				found, v1alpha1.LeaveAnnotation, v1alpha1.LeaveOrphan))
		}
	}
	request, _ := b.RequestedRemoval(s.cluster)
	replaced := request.Reason == v1alpha1.RemovalReplaced
	if !decided && !replaced {
		return false, nil // a user deleted exactly this object
	}
	now, window := s.clock.Now(), s.breaker.batchWindow
	if m.removalStart.IsZero() {
		// Decisions change in batches: removals that arrive together are counted together.
		m.removalStart = now
	}
	if replaced {
		// When the cluster is back, the scheduler may choose it again, and has many objects to decide.
		window *= returnWindows
	}
	if wait := m.removalStart.Add(window).Sub(now); wait > 0 {
		s.queue.AddAfter(b.Key(), wait)
		return true, s.reportRemoving(ctx, b, m, nil)
	}
	if replaced || s.breaker.allow(s, b.Key(), now) {
		return false, nil
	}
	return true, s.reportState(ctx, b, m, v1alpha1.StateHeld,
		"too many objects would be removed from the cluster at once; see condition DeletionsHalted of Cluster "+s.cluster)
}

// shouldOrphan reports whether objects that leave the cluster keep running there.
func (s *Syncer) shouldOrphan(b *v1alpha1.ResourceBinding) bool {
	if b.Annotations[v1alpha1.LeaveAnnotation] == v1alpha1.LeaveOrphan {
		return true
	}
	c, ok := s.Cluster()
	if !ok {
		return true // without a Cluster there is no permission to delete
	}
	leaving, orphan := c.Leaving()
	return leaving && orphan
}

// clusterLeaving reports whether a user deleted the Cluster. Then nothing else keeps an object
// there.
func (s *Syncer) clusterLeaving() bool {
	c, ok := s.Cluster()
	return ok && c.DeletionTimestamp != nil
}

// finishRemoval is called when the member has no object of this binding any more.
func (s *Syncer) finishRemoval(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) error {
	s.removalMu.Lock()
	defer s.removalMu.Unlock()
	if b.Namespace != "" && s.isLast(b, func(other *v1alpha1.ResourceBinding) bool { return other.Namespace == b.Namespace }) {
		err := s.removeNamespace(ctx, b.Namespace)
		if unlisted := (*unlistedError)(nil); errors.As(err, &unlisted) {
			// The object is gone, and its binding must not wait for a group that it has nothing to do
			// with.
			s.log.Warn("a namespace stays in the cluster; retrying", "namespace", b.Namespace, "error", err)
			s.Event(b, corev1.EventTypeWarning, "NamespaceKept", "Cluster "+s.cluster+": "+unlisted.Error())
			s.queue.AddRateLimited(types.NamespacedName{Namespace: b.Namespace})
			err = nil
		}
		if err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
	}
	if err := s.unguard(ctx, b.Key()); err != nil {
		return s.reportRemoving(ctx, b, m, err)
	}
	if err := s.report(ctx, b, m, nil); err != nil {
		return err
	}
	m.gone.Store(true)
	m.invalidate()
	s.leftWithDrain(b, m)
	gvk := b.Spec.Resource.GroupVersionKind()
	if s.isLast(b, func(other *v1alpha1.ResourceBinding) bool { return other.Spec.Resource.GroupVersionKind() == gvk }) {
		s.member.unwatch(k)
	}
	return nil
}

// isLast reports whether the cluster holds no object of any other binding that match selects.
// The caller holds s.removalMu.
func (s *Syncer) isLast(b *v1alpha1.ResourceBinding, among func(*v1alpha1.ResourceBinding) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.Bindings() {
		if !among(other) || b != nil && other.Key() == b.Key() {
			continue
		}
		m := s.records[other.Key()]
		if m == nil || !m.gone.Load() {
			return false
		}
	}
	return true
}
