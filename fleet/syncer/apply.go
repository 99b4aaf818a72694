package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// target is one object that the member should have.
type target struct {
	interpret.KindInfo
	binding *v1alpha1.ResourceBinding
	desired *unstructured.Unstructured // manifest for a member that has no such object yet
	source  fleet.SourceObject         // state of the source that desired was computed from
	share   v1alpha1.ClusterShare
	record  *record
	heard   time.Time // when the syncer heard of a change that is not applied yet; zero if it heard of none
}

// autoscaledPath returns the path of the field that the cluster's autoscaler sets, nil if none
// does.
func (t *target) autoscaledPath() []string {
	if t.binding.Spec.ScaledBy == nil {
		return nil
	}
	return t.ReplicasPath()
}

// lastStatus returns the status that the cluster last reported, nil if it has reported none.
func (t *target) lastStatus() map[string]any {
	if t.record.entry == nil || t.record.entry.Status == nil {
		return nil
	}
	var status map[string]any
	if err := json.Unmarshal(t.record.entry.Status.Raw, &status); err != nil {
		return nil
	}
	return status
}

// hasFinished reports whether the object had completed its work for good when the cluster last
// reported it.
func (t *target) hasFinished() bool {
	status := t.lastStatus()
	return status != nil && t.Finished(&unstructured.Unstructured{Object: map[string]any{"spec": t.desired.Object["spec"], "status": status}})
}

// apply brings the member's object to its desired state and reports the result.
func (s *Syncer) apply(ctx context.Context, t *target) error {
	b, m := t.binding, t.record
	if m.entry == nil {
		// Record the intent before the first write.
		m.gone.Store(false)
		intent := v1alpha1.ClusterState{Name: s.cluster, Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}
		if err := s.report(ctx, b, m, &intent); err != nil {
			return err
		}
	}
	live, err := s.live(ctx, t.KindInfo, b, m)
	if err != nil {
		return err
	}
	if live == nil && m.entry.UID != "" {
		if t.hasFinished() {
			// A user or a controller of the cluster removed it after it had done its work. It must not do
			// it again. Its last report stays.
			return nil
		}
		if lost, err := s.reportLost(ctx, t); lost || err != nil {
			return err
		}
	}
	if live != nil && live.GetDeletionTimestamp() != nil {
		if t.Finished(live) {
			return s.reportLive(ctx, t, live) // the last chance to see how it ended
		}
		why := holders(live)
		if why == "" {
			why = "it is being deleted in the cluster"
		}
		s.checkGone(b, m)
		return s.reportState(ctx, b, m, v1alpha1.StateRemoving, why)
	}
	m.goneChecks = 0
	if live != nil && m.isOutdated(live) {
		return nil // the cache has not caught up with the last apply; an event will follow
	}
	report := b.Spec.Drift == v1alpha1.DriftReport
	if !report && m.driftMessage != "" {
		m.invalidate() // drift that was only reported is corrected from now on
	}
	desired, retained, err := t.Retain(t.desired, live)
	if err != nil {
		return s.reportUnretained(ctx, t, live, err)
	}
	digest := digestOf(desired.Object)
	if live != nil && digest == m.lastApplied && digestLive(live, desired, t.autoscaledPath()) == m.lastObserved {
		return s.reportLive(ctx, t, live)
	}
	// The desired state has not changed since the last apply, so the member's object was
	// changed.
	changed := !m.lifted && m.entry.UID != "" && digest == appliedDigest(m.entry) && (live == nil || live.GetUID() == m.entry.UID)
	if changed && report {
		return s.reportDrift(ctx, t, desired, live)
	}
	if changed && live != nil {
		if pause := m.drift.delay(s.clock.Now()); pause > 0 {
			// Another writer keeps changing it: do not fight at full speed.
			s.queue.AddAfter(b.Key(), pause)
			return s.reportLive(ctx, t, live)
		}
	}
	var owners []metav1.ManagedFieldsEntry
	contested := changed && live != nil && m.drift.isContested()
	if contested {
		// The cached object has no managed fields.
		now, err := s.member.get(ctx, t.KindInfo, b.ObjectName())
		if err != nil {
			return err
		}
		if now != nil {
			owners = now.GetManagedFields()
		}
	}
	applied, err := s.write(ctx, t, desired, live, retained)
	if err != nil {
		return err
	}
	if contested {
		m.contestMessage = formatContest(differences(live, applied, desired), owners)
	}
	s.metrics.wrote(s.cluster, operationApply)
	if !changed && !t.heard.IsZero() {
		s.metrics.synced(s.cluster, s.clock.Since(t.heard))
	}
	s.recordCorrection(t, desired, live, applied, changed)
	m.observe(digest, digestLive(applied, desired, t.autoscaledPath()), applied)
	m.lifted = false
	return s.reportLive(ctx, t, applied)
}

// write applies the object. If an autoscaler sets its replicas, or fields are retained, the manifest depends on
// the live object, and the apply is rejected if that has changed since.
func (s *Syncer) write(ctx context.Context, t *target, desired, live *unstructured.Unstructured, retained bool) (*unstructured.Unstructured, error) {
	if err := s.ensureNamespace(ctx, desired.GetNamespace(), t.GroupKind()); err != nil {
		return nil, err
	}
	if live != nil && t.autoscaledPath() != nil {
		now, err := s.member.get(ctx, t.KindInfo, t.binding.ObjectName())
		if err != nil {
			return nil, err
		}
		if now == nil || now.GetUID() != live.GetUID() {
			return nil, fmt.Errorf("%w: the object was replaced in the cluster", errRequeue)
		}
		if desired, _, _, err = s.Desired(ctx, t.binding, now); err != nil || desired == nil {
			return nil, errors.Join(errRequeue, err) // no longer desired, or not available now
		}
		if desired, _, err = t.Retain(desired, now); err != nil {
			return nil, err
		}
		desired.SetResourceVersion(now.GetResourceVersion())
	} else if live != nil && retained {
		desired = desired.DeepCopy()
		desired.SetResourceVersion(live.GetResourceVersion())
	}
	applied, err := s.member.apply(ctx, t.KindInfo, desired, live, false)
	if err == nil && live != nil {
		applied, err = s.removeAdded(ctx, t, desired, applied)
	}
	if err != nil {
		return nil, err
	}
	t.TrimManagedFields(applied)
	return applied, nil
}

// added returns the fields that people added to a member's object. An adopted object had fields of its
// own before Atoll had it.
func (t *target) added(applied, desired *unstructured.Unstructured) (interpret.Added, bool) {
	if t.source.Adopt {
		return interpret.Added{}, false
	}
	return t.AddedFields(applied, desired, FieldManager)
}

// removeAdded removes the fields that people added to an object, going by the result of an apply: an edit
// that came between a read and the apply is in it as well. It makes the syncer their owner, so that the
// next apply, which does not have them, removes them.
func (s *Syncer) removeAdded(ctx context.Context, t *target, desired, applied *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	added, is := t.added(applied, desired)
	if !is {
		return applied, nil
	}
	entries, ok := interpret.TakeOver(applied, added, FieldManager)
	if !ok {
		return applied, nil
	}
	taken, err := s.member.setManagedFields(ctx, t.KindInfo, applied, entries)
	if err != nil {
		return nil, err
	}
	desired = desired.DeepCopy()
	desired.SetResourceVersion(taken.GetResourceVersion())
	return s.member.apply(ctx, t.KindInfo, desired, taken, false)
}

// recordCorrection emits events about corrected drift.
func (s *Syncer) recordCorrection(t *target, desired, live, applied *unstructured.Unstructured, changed bool) {
	switch {
	case live == nil && t.record.entry.UID != "":
		s.metrics.corrected(s.cluster)
		s.Event(t.binding, corev1.EventTypeNormal, "Recreated", "Recreated the object in cluster "+s.cluster+", where it had been deleted")
	case live != nil && changed && digestLive(live, desired, t.autoscaledPath()) != digestLive(applied, desired, t.autoscaledPath()):
		t.record.drift.corrected(s.clock.Now())
		s.metrics.corrected(s.cluster)
		s.Event(t.binding, corev1.EventTypeNormal, "DriftCorrected", "Corrected changes made in cluster "+s.cluster)
	}
}

// reportDrift reports the fields that were changed in the member, and leaves them.
func (s *Syncer) reportDrift(ctx context.Context, t *target, desired, live *unstructured.Unstructured) error {
	m := t.record
	if live == nil {
		return s.reportState(ctx, t.binding, m, v1alpha1.StateDrifted, "deleted in the cluster; not recreated, because the policy only reports drift")
	}
	whole := desired
	if t.autoscaledPath() != nil { // replicas set by the autoscaler are not drift
		var err error
		if whole, _, _, err = s.Desired(ctx, t.binding, live); err != nil || whole == nil {
			return errors.Join(errRequeue, err)
		}
		if whole, _, err = t.Retain(whole, live); err != nil {
			return err
		}
	}
	would, err := s.member.apply(ctx, t.KindInfo, whole, live, true)
	if err != nil {
		return err
	}
	m.observe(digestOf(desired.Object), digestLive(live, desired, t.autoscaledPath()), live)
	fields := differences(live, would, desired)
	if added, is := t.added(would, desired); is {
		fields = strings.TrimPrefix(fields+", "+shortList(added.Paths)+" (added by "+strings.Join(added.Managers, ", ")+")", ", ")
	}
	if fields != "" {
		m.driftMessage = "changed in the cluster; not corrected, because the policy only reports drift: " + fields
	}
	return s.reportLive(ctx, t, live)
}

// suspended reports the member's object and writes nothing to the member.
func (s *Syncer) suspended(ctx context.Context, t *target) error {
	why := "suspended by a policy: nothing is written to the cluster"
	if t.binding.Spec.Manual != nil {
		why = "waiting for a plan to be applied (see atoll plan): until then nothing is written to the cluster"
	}
	live, err := s.live(ctx, t.KindInfo, t.binding, t.record)
	if err != nil {
		return err
	}
	if t.record.entry == nil {
		return s.report(ctx, t.binding, t.record, &v1alpha1.ClusterState{Name: s.cluster, Health: v1alpha1.Unknown,
			Reason: v1alpha1.StateSuspended, Message: why})
	}
	if live == nil {
		return s.reportState(ctx, t.binding, t.record, v1alpha1.StateSuspended, why)
	}
	return s.reportPrevious(ctx, t, live, v1alpha1.StateSuspended, why)
}

// reportUnretained reports the member's object while a webhook has not answered which fields the cluster sets.
// Without the answer, nothing is written.
func (s *Syncer) reportUnretained(ctx context.Context, t *target, live *unstructured.Unstructured, cause error) error {
	if !interpret.IsWaiting(cause) || interpret.IsPending(cause) {
		return cause
	}
	return s.reportPrevious(ctx, t, live, v1alpha1.StateApplyFailed, explain(cause))
}

// unrevised reports the member's object while a webhook has not answered how the object is to be there.
func (s *Syncer) unrevised(ctx context.Context, t *target, cause error) error {
	live, err := s.live(ctx, t.KindInfo, t.binding, t.record)
	if err == nil && live != nil {
		err = s.reportPrevious(ctx, t, live, v1alpha1.StateApplyFailed, explain(cause))
	}
	if live == nil || err != nil && !interpret.IsPending(err) {
		return s.reportImpossible(ctx, t.binding, t.record, errors.Join(cause, err))
	}
	return nil
}

// reportPrevious reports the member's object where the desired state is not applied, and why.
func (s *Syncer) reportPrevious(ctx context.Context, t *target, live *unstructured.Unstructured, reason, why string) error {
	if err := t.AskAboutLive(live); err != nil {
		return err
	}
	entry, err := s.newEntry(ctx, t, live)
	if err != nil {
		return err
	}
	// The cluster runs the last applied state, not the desired one.
	entry.Generation, entry.Replicas = t.record.entry.Generation, t.record.entry.Replicas
	entry.Reason, entry.Message = reason, why
	return s.report(ctx, t.binding, t.record, entry)
}
