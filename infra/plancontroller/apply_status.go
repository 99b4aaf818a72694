package plancontroller

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/applier"
)

// applyStatus writes the statuses of applies.
type applyStatus struct{ *session }

// pending records why an apply does not start yet.
func (w *applyStatus) pending(ctx context.Context, a *v1alpha1.Apply, reason, message string) error {
	change := func(a *v1alpha1.Apply) bool {
		if ended(a) || begun(a) {
			return false
		}
		changed := a.Status.Phase != v1alpha1.ApplyPending
		a.Status.Phase = v1alpha1.ApplyPending
		return setCondition(&a.Status.Conditions, a.Generation, w.clock.Now(), controllers.Condition(v1alpha1.ApplyComplete, false, reason, message)) || changed
	}
	if !change(a.DeepCopy()) {
		return nil
	}
	_, err := w.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, change)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// end ends an apply that did nothing.
func (w *applyStatus) end(ctx context.Context, a *v1alpha1.Apply, phase v1alpha1.ApplyPhase, reason, message string) error {
	now := metav1.NewMicroTime(w.clock.Now())
	written, err := w.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase, a.Status.CompletionTime = phase, &now
		setCondition(&a.Status.Conditions, a.Generation, now.Time, controllers.Condition(v1alpha1.ApplyComplete, false, reason, message))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		w.metrics.applyFinished(written, nil)
		w.recordEvent("Apply", &a.ObjectMeta, phase == v1alpha1.ApplyFailed, "Apply"+string(phase), "%s", message)
	}
	return err
}

// begin marks an apply as running with its approvers, unless it was cancelled. It returns the current one.
func (w *applyStatus) begin(ctx context.Context, a *v1alpha1.Apply, approvedBy []string) (*v1alpha1.Apply, error) {
	now := metav1.NewMicroTime(w.clock.Now())
	return w.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) || a.Spec.Cancel {
			return false
		}
		a.Status.Phase, a.Status.StartTime, a.Status.ApprovedBy = v1alpha1.ApplyRunning, &now, approvedBy
		setCondition(&a.Status.Conditions, a.Generation, now.Time, controllers.Condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, "Applying."))
		return true
	})
}

// interrupted records why an apply stopped that will resume.
func (w *applyStatus) interrupted(ctx context.Context, a *v1alpha1.Apply, why error) error {
	_, err := w.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		return !ended(a) && setCondition(&a.Status.Conditions, a.Generation, w.clock.Now(),
			controllers.Condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, fmt.Sprintf("The apply was interrupted and will resume: %v.", why)))
	})
	return err
}

// setResult copies an apply's results so far into its status.
func setResult(status *v1alpha1.ApplyStatus, now *applier.Result) {
	status.Succeeded, status.Failed, status.Refused, status.Blocked = now.Succeeded, now.Failed, now.Refused, now.Blocked
	status.Done = now.Summary
	status.Problems = now.Problems[:min(len(now.Problems), shownProblems)]
	status.Warnings = now.Warnings[:min(len(now.Warnings), shownProblems)]
}

// progress returns a function that records how far an apply is.
func (w *applyStatus) progress(run *applyRun, a *v1alpha1.Apply) func(context.Context, applier.Result) {
	var rate rateEstimator
	return func(ctx context.Context, now applier.Result) { w.setProgress(ctx, run, a, &rate, &now) }
}

func (w *applyStatus) setProgress(ctx context.Context, run *applyRun, a *v1alpha1.Apply, rate *rateEstimator, now *applier.Result) {
	progress := rate.progress(w.clock.Now(), now.Succeeded+now.Failed+now.Refused+now.Blocked, now.Total)
	var names []string
	for _, address := range now.Running {
		names = append(names, address.String())
	}
	message := "Applying."
	if len(names) > 0 {
		message = "Applying " + strings.Join(names, ", ") + "."
	}
	_, err := w.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase = v1alpha1.ApplyRunning
		if run.isCanceled() {
			a.Status.Phase = v1alpha1.ApplyCanceling
		}
		a.Status.Progress = progress
		setResult(&a.Status, now)
		setCondition(&a.Status.Conditions, a.Generation, w.clock.Now(), controllers.Condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, message))
		return true
	})
	if err != nil && ctx.Err() == nil {
		w.log.Debug("apply progress update failed", "namespace", a.Namespace, "apply", a.Name, "error", err)
	}
}

// doneText summarizes the changes that were made. Some approved changes may have turned out to be
// unnecessary.
func doneText(s *v1alpha1.PlanSummary) string {
	var parts []string
	for _, one := range []struct {
		count int64
		words string
	}{{s.Import, "imported"}, {s.Move, "moved"}, {s.Create, "created"}, {s.Update, "updated"}, {s.Replace, "replaced"}, {s.Delete, "deleted"}, {s.Forget, "forgotten"}, {s.Read, "read"}, {s.Place, "changed in clusters"}} {
		if one.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.count, one.words))
		}
	}
	if len(parts) == 0 {
		return "no changes were necessary"
	}
	return strings.Join(parts, ", ")
}

// finish marks the plan as applied first: a server that dies in between finds the apply running, and
// returns here.
func (w *applyStatus) finish(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan, done *applier.Result) error {
	now := metav1.NewMicroTime(w.clock.Now())
	_, err := w.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		if p.Status.Phase == v1alpha1.PlanApplied {
			return false
		}
		p.Status.Phase = v1alpha1.PlanApplied
		return true
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	phase, reason, event := v1alpha1.ApplySucceeded, v1alpha1.ReasonSucceeded, "Applied"
	message := "Apply complete: " + doneText(&done.Summary) + "."
	switch bad := done.Failed + done.Refused + done.Blocked; {
	case run.isCanceled() && done.Canceled > 0:
		phase, reason, event = v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled, "ApplyCanceled"
		message = fmt.Sprintf("Apply cancelled: %d applied, %d not started, %d failed, rejected or blocked. Create another plan for the rest.", done.Succeeded, done.Canceled, bad)
	case bad > 0:
		phase, reason, event = v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, "ApplyFailed"
		message = fmt.Sprintf("%d applied, %d failed, %d rejected as stale, %d blocked by those. Create another plan for the rest.",
			done.Succeeded, done.Failed, done.Refused, done.Blocked)
	}
	written, err := w.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase, a.Status.CompletionTime = phase, &now
		setResult(&a.Status, done)
		a.Status.Progress = v1alpha1.Progress{Done: done.Succeeded + done.Failed + done.Refused + done.Blocked, Total: done.Total}
		setCondition(&a.Status.Conditions, a.Generation, now.Time, controllers.Condition(v1alpha1.ApplyComplete, phase == v1alpha1.ApplySucceeded, reason, message))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		w.metrics.applyFinished(written, done)
		w.recordEvent("Apply", &a.ObjectMeta, phase == v1alpha1.ApplyFailed, event, "%s", message)
	}
	return err
}
