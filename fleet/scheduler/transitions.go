package scheduler

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/transition"
)

// Events of an object in transition.
const (
	EventTransitionStarted    = "TransitionStarted"
	EventTransitionCompleted  = "TransitionCompleted"
	EventTransitionRolledBack = "TransitionRolledBack"
	EventTransitionInvalid    = "TransitionSettingsInvalid"
)

// step makes the next step from what a binding has in effect to a decision, in the spec that is about to be
// written: its clusters are the decision. It returns how far the transition is; nil if the decision is in effect.
func (s *scheduler) step(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, spec *v1alpha1.ResourceBindingSpec) *v1alpha1.TransitionStatus {
	snap := s.snapshot()
	o := refOf(k.GroupKind(), obj)
	settings, err := transition.ObjectSettings(obj.GetAnnotations()[v1alpha1.TransitionAnnotation])
	if err != nil {
		s.Events.Event(obj, corev1.EventTypeWarning, EventTransitionInvalid, err.Error())
	}
	in := snap.stepInput(a, k, obj, b, spec)
	in.Limits = transition.LimitsFor(in.Wanted, &settings.TransitionPolicy, a.Choice.Policy.Transition(), snap.Policies.DefaultTransition())
	in.Floor = s.floors(o, in.Wanted)
	s.setEndpoints(&in, snap.Fleet, o, b)
	if spec.Suspend {
		in.Limits.Deadline = 0 // nothing is written to clusters, so nothing can be available in time
	}
	out := transition.Step(in)
	t := b.Spec.Transition
	if t != nil && settings.Abort == t.ID && !out.Done && t.Cause != v1alpha1.CauseRolledBack {
		out.Failed = newIn(in.Goal, in.From)
	}
	now := metav1.NewTime(snap.Now).Rfc3339Copy()
	goal := spec.Clusters
	switch {
	case len(out.Failed) > 0 && t != nil:
		aborted := settings.Abort == t.ID
		spec.Clusters, spec.Goal, spec.Volumes = b.Spec.Clusters, t.From, b.Spec.Volumes
		spec.Avoided = avoid(spec.Avoided, out.Failed, a.failure(obj, snap, out.WaitingFor, aborted, in.Limits.Deadline))
		spec.Transition = &v1alpha1.Transition{ID: transitionID(b, goal, now), Cause: v1alpha1.CauseRolledBack, From: goal, StartTime: now, ProgressTime: now}
		s.Events.Event(obj, corev1.EventTypeWarning, EventTransitionRolledBack,
			fmt.Sprintf("It returns to %s: %s", describe(t.From), spec.Avoided[len(spec.Avoided)-1].Message))
		return statusOf(b, spec, transition.Output{Phase: v1alpha1.PhaseWaiting, WaitingFor: "the clusters to apply the step"}, now)
	case out.Done:
		spec.Clusters, spec.Goal, spec.Transition = withRevisions(goal, out.Next), nil, nil
		if t != nil {
			spec.Avoided = withoutReached(spec.Avoided, goal, t.Cause == v1alpha1.CauseRolledBack, now)
			s.Events.Event(obj, corev1.EventTypeNormal, EventTransitionCompleted, "Runs on "+describe(goal))
		}
		return nil
	}
	spec.Clusters, spec.Goal = effectiveShares(b, a.Leaving, goal, out.Next), goal
	v := snap.volumesOf(k, obj)
	spec.Volumes = snap.transfers(b, obj, &v, out.Transfers)
	if spec.Transition = t.DeepCopy(); t == nil || t.Cause == v1alpha1.CauseRolledBack && !in.Final {
		from := b.Decided()
		spec.Transition = &v1alpha1.Transition{Cause: snap.causeOf(a, from, goal), From: from, StartTime: now, ProgressTime: now}
		spec.Transition.ID = transitionID(b, goal, now)
		s.Events.Event(obj, corev1.EventTypeNormal, EventTransitionStarted, fmt.Sprintf("Goes from %s to %s (%s)", describe(from), describe(goal), spec.Transition.Cause))
	}
	if !slices.Equal(out.Next, in.Now) || !slices.Equal(out.Transfers, in.Volumes.Transfers) || !sameShares(goal, b.Decided()) {
		spec.Transition.ProgressTime = now
	}
	if !out.Recheck.IsZero() {
		s.queue.AddAfter(o, max(out.Recheck.Sub(snap.Now), 0)+time.Millisecond)
	}
	return statusOf(b, spec, out, now)
}

// newIn returns the clusters that a decision has, and an earlier one has not or with fewer replicas.
func newIn(goal, from []transition.Share) (out []string) {
	for _, g := range goal {
		if !slices.ContainsFunc(from, func(f transition.Share) bool { return f.Cluster == g.Cluster && f.Replicas >= g.Replicas }) {
			out = append(out, g.Cluster)
		}
	}
	return out
}

// effectiveShares returns the shares of a step as a binding has them.
func effectiveShares(b *v1alpha1.ResourceBinding, leaving, goal []v1alpha1.ClusterShare, next []transition.Share) []v1alpha1.ClusterShare {
	out := make([]v1alpha1.ClusterShare, 0, len(next))
	for _, s := range next {
		at := slices.IndexFunc(goal, func(c v1alpha1.ClusterShare) bool { return c.Name == s.Cluster })
		var share v1alpha1.ClusterShare
		if at >= 0 {
			share = goal[at]
		} else if at = slices.IndexFunc(leaving, func(c v1alpha1.ClusterShare) bool { return c.Name == s.Cluster }); at >= 0 {
			share = leaving[at]
		} else {
			share, _ = b.Share(s.Cluster)
		}
		share.Drain = nil
		if d := s.Drain; d.Revision > 0 {
			share.Drain = &v1alpha1.EndpointDrain{Replicas: d.Replicas, OrdinalStart: d.Start, Revision: d.Revision, Since: metav1.NewTime(d.Since)}
		}
		if share.Revision = s.Revision; !s.Whole {
			share.Replicas = &s.Replicas
			if share.OrdinalStart != nil || s.Start > 0 {
				share.OrdinalStart = &s.Start
			}
		}
		out = append(out, share)
	}
	return out
}

// withRevisions returns a decision with the revisions that its shares have in effect.
func withRevisions(goal []v1alpha1.ClusterShare, next []transition.Share) []v1alpha1.ClusterShare {
	out := slices.Clone(goal)
	for i := range out {
		for _, s := range next {
			if s.Cluster == out[i].Name {
				out[i].Revision = s.Revision
			}
		}
	}
	return out
}

// transitionID returns an identifier that is the same if the same step is tried again.
func transitionID(b *v1alpha1.ResourceBinding, goal []v1alpha1.ClusterShare, start metav1.Time) string {
	sum := sha256.Sum256([]byte(string(b.UID) + b.ResourceVersion + describe(goal) + start.UTC().Format(time.RFC3339)))
	return hex.EncodeToString(sum[:])[:8]
}

// statusOf returns how far a transition is, as the binding's status has it.
func statusOf(b *v1alpha1.ResourceBinding, spec *v1alpha1.ResourceBindingSpec, out transition.Output, now metav1.Time) *v1alpha1.TransitionStatus {
	t := spec.Transition
	st := &v1alpha1.TransitionStatus{ID: t.ID, Cause: t.Cause, From: describe(t.From), To: describe(spec.Goal), Phase: out.Phase, WaitingFor: out.WaitingFor,
		Since: now, Paused: out.Phase == v1alpha1.PhasePaused}
	if st.Paused {
		st.WaitingFor += ": `" + resumeCommand(b) + "`"
	}
	if was := b.Status.Transition; was != nil && was.ID == st.ID && was.Phase == st.Phase && was.WaitingFor == st.WaitingFor {
		st.Since = was.Since
	}
	return st
}

// resumeCommand returns the command that resumes the transition of a binding's object.
func resumeCommand(b *v1alpha1.ResourceBinding) string {
	gvk := b.Spec.Resource.GroupVersionKind()
	gvk.Kind = strings.ToLower(gvk.Kind)
	command := "atoll resume " + gvk.GroupKind().String() + "/" + b.Spec.Resource.Name
	if b.Namespace != "" {
		command += " -n " + b.Namespace
	}
	return command
}

// setLeaving sets the clusters that run the object and are not in the decision.
func (a *Result) setLeaving(b *v1alpha1.ResourceBinding) {
	if b == nil {
		return
	}
	chosen := clustersIn(a.Shares)
	for _, c := range b.Spec.Clusters {
		if !chosen[c.Name] {
			a.Leaving = append(a.Leaving, c)
		}
	}
}

// stillRunning returns how many replicas clusters still run that are not in the decision about an object.
func stillRunning(b *v1alpha1.ResourceBinding, o *placement.Object) map[string]int32 {
	if b == nil || b.Spec.Transition == nil {
		return nil
	}
	out := map[string]int32{}
	for _, c := range b.Spec.Clusters {
		if _, decided := b.DecidedShare(c.Name); decided {
			continue
		}
		if out[c.Name] = o.Replicas; c.Replicas != nil {
			out[c.Name] = *c.Replicas
		}
	}
	return out
}

// statusChanged queues what depends on a binding's status: the object, if its next step may be possible or it may leave a
// cluster in which it is not Healthy, and the objects that go along with it, if it has left a cluster.
func (s *scheduler) statusChanged(was, is *v1alpha1.ResourceBinding) {
	o := boundBy(is)
	s.endpointsApplied(is)
	if is.Spec.Transition != nil || s.failingOver.has(o) && healthDiffers(was, is) {
		s.queue.Add(o)
	}
	if len(is.Status.Clusters) < len(was.Status.Clusters) {
		for _, needed := range s.needs.neededBy(o) {
			s.queue.Add(needed)
		}
	}
}
