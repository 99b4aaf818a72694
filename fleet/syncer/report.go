package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// report writes the cluster's entry in the binding's status, or removes it if entry is nil. It
// writes nothing if the entry is unchanged.
func (s *Syncer) report(ctx context.Context, b *v1alpha1.ResourceBinding, m *record, entry *v1alpha1.ClusterState) error {
	if entry != nil {
		with := *entry
		with.Volumes, with.Drain = m.volumes, m.drain
		entry = &with
	}
	if sameEntry(m.entry, entry) {
		return nil
	}
	if entry != nil {
		stamped := *entry
		stamped.LastUpdateTime = metav1.NewTime(s.clock.Now())
		entry = &stamped
	}
	if err := s.Report(ctx, b, entry); err != nil {
		return err
	}
	m.entry, m.reportedAt = entry, s.clock.Now()
	return nil
}

// sameEntry compares entries without their LastUpdateTime.
func sameEntry(a, b *v1alpha1.ClusterState) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.LastUpdateTime, y.LastUpdateTime = metav1.Time{}, metav1.Time{}
	if (x.Status == nil) != (y.Status == nil) || x.Status != nil && digestRaw(x.Status) != digestRaw(y.Status) {
		return false
	}
	x.Status, y.Status = nil, nil
	return equality.Semantic.DeepEqual(x, y)
}

// digestRaw is the same for equal JSON, whatever the order of its keys.
func digestRaw(raw *runtime.RawExtension) string {
	var v any
	if err := json.Unmarshal(raw.Raw, &v); err != nil {
		return string(raw.Raw)
	}
	return digestOf(v)
}

// reportLive reports the member's state of an applied object.
func (s *Syncer) reportLive(ctx context.Context, t *target, live *unstructured.Unstructured) error {
	if err := t.AskAboutLive(live); err != nil {
		return err // the answer of the webhook causes another report
	}
	s.settleDrain(ctx, t, live)
	entry, err := s.newEntry(ctx, t, live)
	if err != nil {
		return err
	}
	s.setReason(t, entry)
	if was := t.record.entry; entry.Reason != "" && (was == nil || was.Reason != entry.Reason || was.Message != entry.Message) {
		s.Event(t.binding, corev1.EventTypeWarning, entry.Reason, "Cluster "+s.cluster+": "+entry.Message)
	}
	if wait := s.reportDelay(t.record, entry); wait > 0 {
		s.queue.AddAfter(t.binding.Key(), wait)
		return nil
	}
	return s.report(ctx, t.binding, t.record, entry)
}

// reportLost reports the end of an object that is gone before it finished, and reports whether it is
// of a kind that must not begin again.
func (s *Syncer) reportLost(ctx context.Context, t *target) (bool, error) {
	status, lost, err := t.Lost(t.lastStatus(), s.clock.Now())
	if err != nil {
		return false, fmt.Errorf("report that the object is gone: %w", err)
	}
	if !lost {
		return false, nil
	}
	data, err := json.Marshal(status)
	if err != nil {
		return false, fmt.Errorf("report that the object is gone: %w", err)
	}
	entry := *t.record.entry
	entry.Status = &runtime.RawExtension{Raw: data}
	entry.Health, entry.Message = t.Health(&unstructured.Unstructured{Object: map[string]any{"status": status}})
	entry.Reason = ""
	entry.TrackHealth(t.record.entry, s.clock.Now())
	s.Event(t.binding, corev1.EventTypeWarning, interpret.ReasonDeletedInCluster, "Cluster "+s.cluster+": "+entry.Message)
	return true, s.report(ctx, t.binding, t.record, &entry)
}

// setReason sets the entry's reason if an applied object is drifted, contested or unwatched,
// and schedules the next check.
func (s *Syncer) setReason(t *target, entry *v1alpha1.ClusterState) {
	m, now := t.record, s.clock.Now()
	unseen := s.member.watchError(t.KindInfo)
	switch until := m.drift.contestedUntil(); {
	case m.driftMessage != "":
		entry.Reason, entry.Message = v1alpha1.StateDrifted, m.driftMessage
	case now.Before(until):
		entry.Reason, entry.Message = v1alpha1.StateContested, m.contestMessage
		s.queue.AddAfter(t.binding.Key(), until.Sub(now))
	case unseen != nil:
		entry.Reason, entry.Message = v1alpha1.StateUnwatched, fmt.Sprintf("in sync, but the object cannot be watched in the cluster and is only polled every %s: %s",
			maxBackoff, explain(unseen))
	}
	if unseen != nil {
		s.queue.AddAfter(t.binding.Key(), maxBackoff)
	}
}

// reportDelay returns how long to delay a report of an object that is merely progressing: its
// next state is likely to arrive in the meantime, and is reported instead.
func (s *Syncer) reportDelay(m *record, entry *v1alpha1.ClusterState) time.Duration {
	if entry.Health != v1alpha1.Progressing || entry.Reason != "" || m.reportedAt.IsZero() || sameEntry(m.entry, entry) {
		return 0
	}
	return m.reportedAt.Add(reportInterval).Sub(s.clock.Now())
}

// newEntry returns the entry that reports an existing object.
func (s *Syncer) newEntry(ctx context.Context, t *target, live *unstructured.Unstructured) (*v1alpha1.ClusterState, error) {
	entry := &v1alpha1.ClusterState{Name: s.cluster, UID: live.GetUID(), Generation: t.source.Generation,
		Replicas: t.share.Replicas, ShareRevision: t.share.Revision, MemberGeneration: live.GetGeneration(), Applied: t.record.encodeApplied()}
	if entry.Applied == "" && t.record.entry != nil {
		entry.Applied = t.record.entry.Applied
	}
	if entry.Health, entry.Message = t.Health(live); entry.Health == v1alpha1.Progressing {
		if why := s.rejectedPods(ctx, t, live); why != "" {
			entry.Health, entry.Message = v1alpha1.Degraded, why
		}
	}
	entry.ClusterIPs = derivedAddresses(live)
	entry.TrackHealth(t.record.entry, s.clock.Now())
	if observed, reported := t.ObservedGeneration(live); reported {
		entry.ObservedGeneration = observed
	} else {
		entry.ObservedGeneration = entry.MemberGeneration
	}
	status, err := t.CollectedStatus(live)
	if err != nil {
		// The status that was collected last stays.
		if was := t.record.entry; was != nil {
			entry.Status = was.Status
		}
		if entry.Message == "" {
			entry.Message = "cannot collect the status: " + err.Error()
		}
	}
	if len(status) > 0 {
		data, err := json.Marshal(status)
		if err != nil {
			return nil, fmt.Errorf("encode the status of %s %s: %w", t.KindInfo.Kind, live.GetName(), err)
		}
		entry.Status = &runtime.RawExtension{Raw: data}
	}
	return entry, nil
}

// reportState reports why an object is not in its desired state although nothing failed. The
// other fields of the entry stay.
func (s *Syncer) reportState(ctx context.Context, b *v1alpha1.ResourceBinding, m *record, reason, message string) error {
	entry := *m.entry
	entry.Reason, entry.Message = reason, message
	return s.report(ctx, b, m, &entry)
}

// reportFailure reports why an object could not be synchronized, and returns an error for the
// next attempt.
func (s *Syncer) reportFailure(ctx context.Context, b *v1alpha1.ResourceBinding, m *record, cause error) error {
	if m.entry == nil || errors.Is(cause, errRequeue) || apierrors.IsConflict(cause) || ctx.Err() != nil {
		return cause
	}
	entry := *m.entry // keep the known state: the object still runs
	entry.Reason, entry.Message = v1alpha1.StateApplyFailed, explain(cause)
	if entry.UID == "" {
		entry.Health = v1alpha1.Unknown
	}
	var conflict conflictError
	switch {
	case errors.As(cause, &conflict):
		entry.Reason = v1alpha1.StateConflict
	case lacksPermission(cause):
		entry.Reason = v1alpha1.StateForbidden
	}
	if !sameEntry(m.entry, &entry) {
		s.Event(b, corev1.EventTypeWarning, entry.Reason, "Cluster "+s.cluster+": "+entry.Message)
		if err := s.report(ctx, b, m, &entry); err != nil {
			return err
		}
	}
	return cause
}

// reportImpossible reports why the object's manifest cannot even be computed.
func (s *Syncer) reportImpossible(ctx context.Context, b *v1alpha1.ResourceBinding, m *record, cause error) error {
	if m.entry != nil {
		return s.reportFailure(ctx, b, m, cause)
	}
	entry := &v1alpha1.ClusterState{Name: s.cluster, Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplyFailed, Message: explain(cause)}
	if err := s.report(ctx, b, m, entry); err != nil {
		return err
	}
	return cause
}

// reportRemoving reports that the object still exists, and why if removal failed.
func (s *Syncer) reportRemoving(ctx context.Context, b *v1alpha1.ResourceBinding, m *record, cause error) error {
	message := ""
	if cause != nil {
		message = explain(cause)
	}
	if err := s.reportState(ctx, b, m, v1alpha1.StateRemoving, message); err != nil {
		return err
	}
	return cause
}
