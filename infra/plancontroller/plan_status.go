package plancontroller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// shownProblems is how many problems or warnings a status contains.
const shownProblems = 100

// planStatus writes the statuses of plans.
type planStatus struct{ *session }

// start marks a plan as being computed, and returns the current plan. It keeps the time of an earlier attempt.
func (w *planStatus) start(ctx context.Context, cached *v1alpha1.Plan, at metav1.MicroTime) (*v1alpha1.Plan, error) {
	return w.api.plans.UpdateStatus(ctx, cached.Namespace, cached.Name, cached.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) || p.DeletionTimestamp != nil || p.Status.Phase == v1alpha1.PlanPlanning && p.Status.StartTime != nil {
			return false
		}
		p.Status.Phase, p.Status.StartTime = v1alpha1.PlanPlanning, &at
		return true
	})
}

// retry records why the last attempt failed.
func (w *planStatus) retry(ctx context.Context, p *v1alpha1.Plan, why error) error {
	_, err := w.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		return !finished(p) && setCondition(&p.Status.Conditions, p.Generation, w.clock.Now(),
			controllers.Condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonWaiting, fmt.Sprintf("Planning failed and will be retried: %v.", why)))
	})
	return err
}

// progress returns a function that records how far a plan is.
func (w *planStatus) progress(p *v1alpha1.Plan) func(context.Context, [2]int) {
	var rate rateEstimator
	return func(ctx context.Context, n [2]int) {
		progress := rate.progress(w.clock.Now(), int64(n[0]), int64(n[1]))
		_, err := w.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
			if finished(p) {
				return false
			}
			p.Status.Progress = progress
			return true
		})
		if err != nil && ctx.Err() == nil {
			w.log.Debug("plan progress update failed", "namespace", p.Namespace, "plan", p.Name, "error", err)
		}
	}
}

// fail marks a plan as failed, without contents.
func (w *planStatus) fail(ctx context.Context, p *v1alpha1.Plan, problems []v1alpha1.Problem, message string) error {
	now := metav1.NewMicroTime(w.clock.Now())
	written, err := w.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) {
			return false
		}
		p.Status.Phase, p.Status.CompletionTime = v1alpha1.PlanFailed, &now
		p.Status.Problems = problems[:min(len(problems), shownProblems)]
		setCondition(&p.Status.Conditions, p.Generation, now.Time, controllers.Condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonFailed, message))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		w.metrics.planFinished(written, nil)
		w.recordEvent("Plan", &p.ObjectMeta, true, "PlanFailed", "%s", message)
	}
	return err
}

// finish stores the contents of a plan.
func (w *planStatus) finish(ctx context.Context, p *v1alpha1.Plan, planned *planner.Result) error {
	now := metav1.NewMicroTime(w.clock.Now())
	complete := controllers.Condition(v1alpha1.PlanComplete, true, v1alpha1.ReasonPlanned, planned.Contents.Counts.Summary())
	if n := len(planned.Problems); n > 0 || planned.NotPlanned > 0 {
		complete = controllers.Condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonProblems,
			fmt.Sprintf("%d resources could not be planned, including their dependents; the plan has the others. %s", planned.NotPlanned, planned.Contents.Counts.Summary()))
	}
	done := int64(planned.Contents.Counts.Changes)
	written, err := w.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) {
			return false
		}
		p.Status.Phase, p.Status.CompletionTime = v1alpha1.PlanPlanned, &now
		planstore.SetContents(&p.Status, planned.Contents)
		p.Status.Problems = planned.Problems[:min(len(planned.Problems), shownProblems)]
		p.Status.Warnings = planned.Warnings[:min(len(planned.Warnings), shownProblems)]
		p.Status.Progress = v1alpha1.Progress{Done: done, Total: done + int64(planned.NotPlanned)}
		setCondition(&p.Status.Conditions, p.Generation, now.Time, complete)
		setCondition(&p.Status.Conditions, p.Generation, now.Time, controllers.Condition(v1alpha1.PlanCurrent, true, v1alpha1.ReasonPlanned, "Nothing that the plan was computed from has changed since."))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		w.metrics.planFinished(written, planned)
		w.recordEvent("Plan", &p.ObjectMeta, false, "Planned", "%s", complete.Message)
	}
	return err
}
