package scheduler

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// writePolicyStatus writes the status of a policy if it differs, and begins the step in it. It returns when to do
// that again, 0 if only after an event.
func (s *scheduler) writePolicyStatus(ctx context.Context, p *placement.Subject, policy runtime.Object, accepted metav1.Condition, t progress) time.Duration {
	conditions := []metav1.Condition{accepted}
	if t.condition != nil {
		conditions = append(conditions, *t.condition)
	}
	same := sameContents(p.Status, &t)
	for i := range conditions {
		c := &conditions[i]
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = p.Meta.Generation
		}
		c.LastTransitionTime = metav1.NewTime(s.Clock.Now())
		was := meta.FindStatusCondition(p.Status.Conditions, c.Type)
		same = same && was != nil && was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message && was.ObservedGeneration == c.ObservedGeneration
		if was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	if same && (t.condition != nil) == (meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementActive) != nil) {
		return t.next
	}
	if err := s.applyPolicyStatus(ctx, p, conditions, t); err != nil {
		if ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			s.Log.Warn("update of a policy's status failed; retrying", "kind", p.Kind, "namespace", p.Meta.Namespace, "name", p.Meta.Name, "error", err)
		}
		return time.Second
	}
	s.recordEdit(p, policy, t)
	if len(t.release) > 0 {
		s.edits.release(t.release, versionOf(p))
		for _, o := range t.release {
			s.queue.Add(o)
		}
	}
	return t.next
}

// sameContents reports whether a status has the desired contents and step.
func sameContents(was *v1alpha1.PlacementStatus, t *progress) bool {
	generation := func(c *v1alpha1.PolicyContent) int64 {
		if c == nil {
			return 0
		}
		return c.Generation
	}
	return generation(was.Active) == generation(t.active) && (was.Step == nil) == (t.step == nil) && (t.step == nil || was.Step.Number == t.step.Number && was.Step.Generation == t.step.Generation) &&
		slices.EqualFunc(was.Later, t.later, func(a, b v1alpha1.PolicyContent) bool { return a.Generation == b.Generation })
}

// applyPolicyStatus writes the complete status: a field that it omits is removed. It fails with a conflict if the
// policy has changed since it was read and contents are written.
func (s *scheduler) applyPolicyStatus(ctx context.Context, p *placement.Subject, conditions []metav1.Condition, t progress) error {
	next := v1alpha1.PlacementStatus{Conditions: conditions, Active: t.active, Later: t.later, Step: t.step}
	u, err := toUnstructured(&next)
	if err != nil {
		return err
	}
	resource := v1alpha1.PlacementResource
	if p.Kind == "ClusterPlacement" {
		resource = v1alpha1.ClusterPlacementResource
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": p.Kind,
		"metadata": map[string]any{"name": p.Meta.Name, "uid": string(p.Meta.UID)},
		"status":   u.Object,
	}}
	apply.SetNamespace(p.Meta.Namespace)
	if t.active != nil || p.Status.Active != nil {
		apply.SetResourceVersion(p.Meta.ResourceVersion)
	}
	_, err = s.Dynamic.Resource(resource).Namespace(p.Meta.Namespace).ApplyStatus(ctx, p.Meta.Name, apply, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return err
}

// recordEdit emits an event once for each edit that waits, and for each step that stops.
func (s *scheduler) recordEdit(p *placement.Subject, policy runtime.Object, t progress) {
	if !t.waits() {
		return
	}
	was := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementActive)
	started := was == nil || was.ObservedGeneration != p.Meta.Generation
	stopped := t.condition.Reason == v1alpha1.ReasonStepUnhealthy && was != nil && was.Reason != t.condition.Reason
	switch {
	case stopped:
		s.Events.Event(policy, corev1.EventTypeWarning, t.condition.Reason, t.condition.Message)
	case started:
		s.Events.Event(policy, corev1.EventTypeNormal, t.condition.Reason, t.condition.Message)
	}
}
