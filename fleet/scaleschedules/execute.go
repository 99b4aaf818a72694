package scaleschedules

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/scaling"
)

// execute begins the run that is due, or continues the one that has begun.
func (c *controller) execute(ctx context.Context, of *v1alpha1.ScaleSchedule, d *scaling.Decision) error {
	asked, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	t, err := c.target(asked, of)
	var current v1alpha1.ScaleValues
	if err == nil {
		current, err = t.values(asked)
	}
	if err != nil {
		return c.finish(ctx, of, d, d.Status, err)
	}
	status := d.Status
	if d.Begun {
		switch scaling.Resume(status.Run, d.Set, current) {
		case scaling.Done:
			return c.finish(ctx, of, d, status, nil)
		case scaling.Overtaken:
			message := fmt.Sprintf("another client changed the target after the run had begun: it has %s", scaling.String(scaling.Only(current, d.Set)))
			_, err := c.store(ctx, of, scaling.End(status, v1alpha1.ScaleSuperseded, message, c.Clock.Now()), c.condition(of, nil), append(d.Ended, d.Rules...)...)
			return err
		}
	} else {
		status = d.Begin(of.Generation, current)
		if of, err = c.store(ctx, of, status, metav1.Condition{}); err != nil {
			return err // another server may have begun it
		}
	}
	return c.finish(ctx, of, d, status, t.set(asked, d.Set))
}

// finish records the outcome of a run. An error that may pass is recorded and returned, so the run is
// retried until its deadline.
func (c *controller) finish(ctx context.Context, of *v1alpha1.ScaleSchedule, d *scaling.Decision, status v1alpha1.ScaleScheduleStatus, outcome error) error {
	now := c.Clock.Now()
	again := unknown(outcome)
	begun := status.Run != nil
	switch {
	case outcome == nil:
		status = scaling.End(status, v1alpha1.ScaleSucceeded, "set "+scaling.String(d.Set), now)
	case again == nil:
		if !begun {
			status = d.Begin(of.Generation, v1alpha1.ScaleValues{})
		}
		status = scaling.End(status, v1alpha1.ScaleFailed, outcome.Error(), now)
	case begun:
		status = scaling.Explain(status, "retrying: "+outcome.Error())
	}
	ended := d.Ended
	if again == nil {
		ended = append(slices.Clone(ended), d.Rules...)
	}
	condition := c.condition(of, outcome)
	_, err := c.store(ctx, of, status, condition, ended...)
	if apierrors.IsConflict(err) && begun {
		err = c.storeOver(ctx, of, status, condition, ended)
	}
	return errors.Join(again, err)
}

// storeOver stores the outcome of a run although the schedule has changed since, such as by a user's
// edit, provided that its status has not.
func (c *controller) storeOver(ctx context.Context, of *v1alpha1.ScaleSchedule, status v1alpha1.ScaleScheduleStatus, condition metav1.Condition, ended []string) error {
	u, err := c.Dynamic.Resource(v1alpha1.ScaleScheduleResource).Namespace(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read ScaleSchedule %s/%s: %w", of.Namespace, of.Name, err)
	}
	live := &v1alpha1.ScaleSchedule{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, live); err != nil {
		return fmt.Errorf("read ScaleSchedule %s/%s: %w", of.Namespace, of.Name, err)
	}
	if live.UID != of.UID || !equality.Semantic.DeepEqual(live.Status, of.Status) {
		return nil // another leader continues the run
	}
	_, err = c.store(ctx, live, status, condition, ended...)
	return err
}

// ready returns the condition Ready with a reason.
func ready(reason, message string) metav1.Condition {
	is := reason == v1alpha1.ReasonScaleScheduled || reason == v1alpha1.ReasonScaleSuspended
	return controllers.Condition(v1alpha1.ScaleScheduleReady, is, reason, message)
}

// condition returns the condition after a check or run.
func (c *controller) condition(of *v1alpha1.ScaleSchedule, outcome error) metav1.Condition {
	r := refusal{}
	switch {
	case errors.As(outcome, &r):
		return ready(r.reason, r.Error())
	case outcome != nil:
		return ready(v1alpha1.ReasonScaleRetrying, outcome.Error())
	case of.Spec.Suspend:
		return ready(v1alpha1.ReasonScaleSuspended, "all rules are suspended by spec.suspend")
	}
	return ready(v1alpha1.ReasonScaleScheduled, fmt.Sprintf("runs have the rights of user %q", of.Spec.Author.Username))
}

// store writes the status of exactly the version that it was decided about, and returns the new
// version. It records events for the rules whose runs have ended. Without a condition, the present one
// stays.
func (c *controller) store(ctx context.Context, of *v1alpha1.ScaleSchedule, status v1alpha1.ScaleScheduleStatus, condition metav1.Condition, ended ...string) (*v1alpha1.ScaleSchedule, error) {
	next := of.DeepCopy()
	next.Status = *status.DeepCopy()
	next.Status.Conditions = of.DeepCopy().Status.Conditions
	if condition.Type != "" {
		condition.ObservedGeneration, condition.LastTransitionTime = status.ObservedGeneration, metav1.NewTime(c.Clock.Now()).Rfc3339Copy()
		if was := meta.FindStatusCondition(of.Status.Conditions, condition.Type); was != nil && was.Status == condition.Status {
			condition.LastTransitionTime = was.LastTransitionTime
		}
		next.Status.Conditions = []metav1.Condition{condition}
	}
	if equality.Semantic.DeepEqual(next.Status, of.Status) {
		return of, nil
	}
	next.SetGroupVersionKind(v1alpha1.ScaleScheduleResource.GroupVersion().WithKind("ScaleSchedule"))
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(next)
	if err != nil {
		return nil, fmt.Errorf("encode the status of ScaleSchedule %s/%s: %w", of.Namespace, of.Name, err)
	}
	u, err := c.Dynamic.Resource(v1alpha1.ScaleScheduleResource).Namespace(of.Namespace).UpdateStatus(ctx, &unstructured.Unstructured{Object: fields},
		metav1.UpdateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, fmt.Errorf("write the status of ScaleSchedule %s/%s: %w", of.Namespace, of.Name, err)
	}
	stored := &v1alpha1.ScaleSchedule{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, stored); err != nil {
		return nil, fmt.Errorf("read ScaleSchedule %s/%s: %w", of.Namespace, of.Name, err)
	}
	c.announce(stored, ended)
	return stored, nil
}

// announce records an event for each rule whose run has ended.
func (c *controller) announce(of *v1alpha1.ScaleSchedule, ended []string) {
	reasons := map[v1alpha1.ScaleResult]string{v1alpha1.ScaleSucceeded: v1alpha1.EventScaled, v1alpha1.ScaleFailed: v1alpha1.EventScaleFailed,
		v1alpha1.ScaleMissed: v1alpha1.EventScaleMissed, v1alpha1.ScaleSuperseded: v1alpha1.EventScaleSuperseded}
	for i := range of.Status.Rules {
		st := &of.Status.Rules[i]
		reason, hasEnded := reasons[st.LastResult]
		if !hasEnded || !slices.Contains(ended, st.Name) || st.LastScheduleTime == nil {
			continue
		}
		kind := corev1.EventTypeWarning
		if st.LastResult == v1alpha1.ScaleSucceeded || st.LastResult == v1alpha1.ScaleSuperseded {
			kind = corev1.EventTypeNormal
		}
		c.Events.Event(of, kind, reason, fmt.Sprintf("rule %s, %s %s, run of %s: %s", st.Name, of.Spec.Target.Kind, of.Spec.Target.Name,
			st.LastScheduleTime.UTC().Format("2006-01-02 15:04 MST"), st.Message))
	}
}
