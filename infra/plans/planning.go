package plans

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/expr"
)

const (
	// planAttempts is how often a plan is attempted before it fails.
	planAttempts = 5
	// syncTimeout bounds the wait until the inventory has all earlier writes.
	syncTimeout = 2 * time.Minute
	// shownProblems is how many problems or warnings a status contains.
	shownProblems = 100
	// publishConcurrency is how many objects' statuses are written concurrently.
	publishConcurrency = 8
)

// finished reports whether a plan has its final contents.
func finished(p *v1alpha1.Plan) bool {
	switch p.Status.Phase {
	case v1alpha1.PlanPlanned, v1alpha1.PlanApplied, v1alpha1.PlanFailed:
		return true
	}
	return false
}

// startPlan starts the oldest unfinished plan, unless one of the namespace is being computed.
func (r *reconciler) startPlan(ctx context.Context, s *snapshot) {
	for _, p := range s.plans {
		if finished(p) || p.DeletionTimestamp != nil {
			continue
		}
		if wait, paused := r.inBackoff(p.UID, s.now); paused {
			r.requeueAfter(s.namespace, wait)
			continue
		}
		r.mu.Lock()
		_, busy := r.planning[s.namespace]
		if !busy {
			select {
			case r.planSlots <- struct{}{}:
				r.planning[s.namespace] = p.UID
			default:
				busy = true
				r.requeueAfter(s.namespace, reportInterval)
			}
		}
		r.mu.Unlock()
		if !busy {
			r.running.Go(func() { r.runPlan(ctx, p) })
		}
		return
	}
}

// runPlan computes a plan, and records a failure.
func (r *reconciler) runPlan(ctx context.Context, p *v1alpha1.Plan) {
	err := r.plan(ctx, p)
	if err != nil && ctx.Err() == nil {
		r.metrics.failed(operationPlan, err)
		r.log.Warn("planning failed", "namespace", p.Namespace, "plan", p.Name, "error", err)
		if r.recordFailure(p.UID) >= planAttempts {
			err = r.failPlan(ctx, p, nil, fmt.Sprintf("Planning failed: %v. Fix the cause, then create another plan.", err))
		} else {
			_, err = r.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
				return !finished(p) && setCondition(&p.Status.Conditions, p.Generation, r.clock.Now(),
					controllers.Condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonWaiting, fmt.Sprintf("Planning failed and will be retried: %v.", err)))
			})
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			r.log.Warn("plan status update failed", "namespace", p.Namespace, "plan", p.Name, "error", err)
		}
	} else {
		r.clearFailures(p.UID)
	}
	r.mu.Lock()
	delete(r.planning, p.Namespace)
	r.mu.Unlock()
	<-r.planSlots
	// The cache may not have the latest write yet.
	r.requeueAfter(p.Namespace, 20*time.Millisecond)
}

// plan computes a plan from scratch, and overwrites the results of earlier attempts.
func (r *reconciler) plan(ctx context.Context, cached *v1alpha1.Plan) error {
	started := metav1.NewMicroTime(r.clock.Now())
	p, err := r.api.plans.UpdateStatus(ctx, cached.Namespace, cached.Name, cached.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) || p.DeletionTimestamp != nil || p.Status.Phase == v1alpha1.PlanPlanning && p.Status.StartTime != nil {
			return false
		}
		p.Status.Phase, p.Status.StartTime = v1alpha1.PlanPlanning, &started
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if finished(p) || p.DeletionTimestamp != nil {
		return nil
	}
	if err := r.syncInventory(ctx); err != nil {
		return err
	}
	req, problems := r.planningRequest(p)
	if p.Spec.Rollback != "" && len(problems) == 0 {
		if problems, err = r.rollback(ctx, p, &req); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return r.failPlan(ctx, p, problems, fmt.Sprintf("Invalid plan: %s: %s", problems[0].Field, problems[0].Message))
	}
	waiting, undecided, err := r.workloadChanges(ctx, p, r.takeSnapshot(p.Namespace), req.Selector)
	if err != nil {
		return err
	}
	req.Workloads = waiting
	store := apistore.NewPlanStore(r.dynamic, p)
	if req.Salt, err = store.NewSalt(ctx); err != nil {
		return err
	}
	var progress reporter[[2]int]
	req.OnProgress = func(done, total int) { progress.set([2]int{done, total}) }
	size := runSize{onLargeRun: r.onLargeRun}
	defer size.finish()
	req.OnProviderCall = size.observe
	stop := progress.start(ctx, r.clock, r.planProgress(p))
	planned, err := r.engine.Plan(apistore.ForPlan(ctx, p.Namespace, waiting), req, store)
	stop()
	if err != nil {
		return err
	}
	planned.Problems = append(planned.Problems, undecided...)
	planned.NotPlanned += len(undecided)
	if len(p.Spec.Objects) == 0 {
		r.publish(ctx, p, planned)
	}
	return r.finishPlan(ctx, p, planned)
}

func (r *reconciler) syncInventory(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, syncTimeout, errors.New("timed out"))
	defer cancel()
	return r.feed.WaitCurrent(ctx)
}

func (r *reconciler) planProgress(p *v1alpha1.Plan) func(context.Context, [2]int) {
	var rate rateEstimator
	return func(ctx context.Context, n [2]int) {
		progress := rate.progress(r.clock.Now(), int64(n[0]), int64(n[1]))
		_, err := r.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
			if finished(p) {
				return false
			}
			p.Status.Progress = progress
			return true
		})
		if err != nil && ctx.Err() == nil {
			r.log.Debug("plan progress update failed", "namespace", p.Namespace, "plan", p.Name, "error", err)
		}
	}
}

// failPlan marks a plan as failed, without contents.
func (r *reconciler) failPlan(ctx context.Context, p *v1alpha1.Plan, problems []v1alpha1.Problem, message string) error {
	now := metav1.NewMicroTime(r.clock.Now())
	written, err := r.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
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
		r.metrics.planFinished(written, nil)
		r.recordEvent("Plan", &p.ObjectMeta, true, "PlanFailed", "%s", message)
	}
	return err
}

func (r *reconciler) finishPlan(ctx context.Context, p *v1alpha1.Plan, planned *infra.PlanResult) error {
	now := metav1.NewMicroTime(r.clock.Now())
	complete := controllers.Condition(v1alpha1.PlanComplete, true, v1alpha1.ReasonPlanned, planned.Contents.Counts.Summary())
	if n := len(planned.Problems); n > 0 || planned.NotPlanned > 0 {
		complete = controllers.Condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonProblems,
			fmt.Sprintf("%d resources could not be planned, including their dependents; the plan has the others. %s", planned.NotPlanned, planned.Contents.Counts.Summary()))
	}
	done := int64(planned.Contents.Counts.Changes)
	written, err := r.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) {
			return false
		}
		p.Status.Phase, p.Status.CompletionTime = v1alpha1.PlanPlanned, &now
		infra.SetContents(&p.Status, planned.Contents)
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
		r.metrics.planFinished(written, planned)
		r.recordEvent("Plan", &p.ObjectMeta, false, "Planned", "%s", complete.Message)
	}
	return err
}

// publish writes the plan's findings into the statuses of objects. A failure to write them does not change
// the plan.
func (r *reconciler) publish(ctx context.Context, p *v1alpha1.Plan, planned *infra.PlanResult) {
	var group errgroup.Group
	group.SetLimit(publishConcurrency)
	var mu sync.Mutex
	var first error
	tell := func(o *infra.Object, result infra.ObjectStatus) {
		group.Go(func() error {
			if err := r.objects.UpdateStatus(ctx, o, result); err != nil && !errors.Is(err, infra.ErrStale) {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
			}
			return nil
		})
	}
	drift := func(refs []expr.Ref, is bool, reason, message string) {
		for _, ref := range refs {
			// Of a hundred thousand objects nearly all are unchanged: those are not read from the API.
			if o := r.inventory.Object(ref); o != nil && r.feed.Drifted(ref) != is {
				tell(o, infra.ObjectStatus{Conditions: []infra.Condition{{Type: infra.ConditionDrifted, True: is, Reason: reason, Message: message}}})
			}
		}
	}
	drift(planned.Drifted, true, "Changed", fmt.Sprintf("The resource was changed outside of Atoll: plan %s shows the changes and the planned response.", p.Name))
	drift(planned.InSync, false, "Seen", "The resource matches its last applied state.")
	for _, read := range planned.DataReads {
		tell(read.Object, read.ObjectStatus)
	}
	_ = group.Wait()
	if first != nil && ctx.Err() == nil {
		r.log.Warn("status updates of planned objects failed", "namespace", p.Namespace, "plan", p.Name, "error", first)
	}
}

// setCondition sets a condition, and reports whether that changed anything.
func setCondition(all *[]metav1.Condition, generation int64, now time.Time, c metav1.Condition) bool {
	c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
	return meta.SetStatusCondition(all, c)
}
