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
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/reference"
)

const (
	// planAttempts is how often a plan is begun that something keeps from being made, before it is given up.
	planAttempts = 5
	// currentWithin is how long it may take until the World has all that was written.
	currentWithin = 2 * time.Minute
	// shownProblems is how many a status has.
	shownProblems = 100
	// publishing is how many objects are told at a time what was found out about them.
	publishing = 8
)

// finished tells whether a plan will not be computed any more.
func finished(p *v1alpha1.Plan) bool {
	switch p.Status.Phase {
	case v1alpha1.PlanPlanned, v1alpha1.PlanApplied, v1alpha1.PlanFailed:
		return true
	}
	return false
}

// beginPlan begins the oldest plan that has no result, if none of the namespace is being made.
func (d *desk) beginPlan(ctx context.Context, s *scene) {
	for _, p := range s.plans {
		if finished(p) || p.DeletionTimestamp != nil {
			continue
		}
		if wait, paused := d.paused(p.UID, s.now); paused {
			d.later(s.namespace, wait)
			continue
		}
		d.mu.Lock()
		_, busy := d.planning[s.namespace]
		if !busy {
			select {
			case d.planSlots <- struct{}{}:
				d.planning[s.namespace] = p.UID
			default:
				busy = true
				d.later(s.namespace, tellEvery)
			}
		}
		d.mu.Unlock()
		if !busy {
			d.running.Go(func() { d.planned(ctx, p) })
		}
		return
	}
}

// planned makes a plan, and notes how that ended.
func (d *desk) planned(ctx context.Context, p *v1alpha1.Plan) {
	err := d.plan(ctx, p)
	if err != nil && ctx.Err() == nil {
		d.log.Warn("a plan could not be made", "namespace", p.Namespace, "plan", p.Name, "error", err)
		if d.failed(p.UID) >= planAttempts {
			err = d.failPlan(ctx, p, nil, fmt.Sprintf("It could not be made: %v. When that is mended, make another plan.", err))
		} else {
			_, err = d.api.plans.updateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
				return !finished(p) && setCondition(&p.Status.Conditions, p.Generation, d.clock.Now(),
					condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonWaiting, fmt.Sprintf("It is tried again: %v.", err)))
			})
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			d.log.Warn("what became of a plan could not be written", "namespace", p.Namespace, "plan", p.Name, "error", err)
		}
	} else {
		d.succeeded(p.UID)
	}
	d.mu.Lock()
	delete(d.planning, p.Namespace)
	d.mu.Unlock()
	<-d.planSlots
	// The cache may not have what was written a moment ago.
	d.later(p.Namespace, 20*time.Millisecond)
}

// plan makes one from the start. Whatever an attempt before has left is written over.
func (d *desk) plan(ctx context.Context, cached *v1alpha1.Plan) error {
	started := metav1.NewMicroTime(d.clock.Now())
	p, err := d.api.plans.updateStatus(ctx, cached.Namespace, cached.Name, cached.UID, func(p *v1alpha1.Plan) bool {
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
	if err := d.current(ctx); err != nil {
		return err
	}
	what, problems := d.asked(p)
	if p.Spec.Rollback != "" && len(problems) == 0 {
		if problems, err = d.rollback(ctx, p, &what); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return d.failPlan(ctx, p, problems, fmt.Sprintf("What it asks for cannot be planned; %s: %s", problems[0].Field, problems[0].Message))
	}
	waiting, undecided, err := d.workloadChanges(ctx, p, d.look(p.Namespace), what.Selector)
	if err != nil {
		return err
	}
	what.Workloads = waiting
	store := newPlanStore(d.api, p)
	if what.Salt, err = store.newSalt(ctx); err != nil {
		return err
	}
	var how reporter[[2]int]
	what.OnProgress = func(done, total int) { how.tell([2]int{done, total}) }
	work := effort{large: d.large}
	defer work.end()
	what.OnProviderCall = work.of
	stop := how.begin(ctx, d.clock, d.planProgress(p))
	planned, err := d.engine.Plan(withWaiting(withRun(ctx, p.Namespace, true), waiting), what, store)
	stop()
	if err != nil {
		return err
	}
	planned.Problems = append(planned.Problems, undecided...)
	planned.NotPlanned += len(undecided)
	if len(p.Spec.Objects) == 0 {
		d.publish(ctx, p, planned)
	}
	return d.finishPlan(ctx, p, planned)
}

func (d *desk) current(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, currentWithin, errors.New("it took too long"))
	defer cancel()
	return d.feed.Current(ctx)
}

func (d *desk) planProgress(p *v1alpha1.Plan) func(context.Context, [2]int) {
	var speed pace
	return func(ctx context.Context, n [2]int) {
		progress := speed.progress(d.clock.Now(), int64(n[0]), int64(n[1]))
		_, err := d.api.plans.updateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
			if finished(p) {
				return false
			}
			p.Status.Progress = progress
			return true
		})
		if err != nil && ctx.Err() == nil {
			d.log.Debug("how far a plan is could not be written", "namespace", p.Namespace, "plan", p.Name, "error", err)
		}
	}
}

// failPlan ends a plan without contents.
func (d *desk) failPlan(ctx context.Context, p *v1alpha1.Plan, problems []v1alpha1.Problem, message string) error {
	now := metav1.NewMicroTime(d.clock.Now())
	_, err := d.api.plans.updateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) {
			return false
		}
		p.Status.Phase, p.Status.CompletionTime = v1alpha1.PlanFailed, &now
		p.Status.Problems = problems[:min(len(problems), shownProblems)]
		setCondition(&p.Status.Conditions, p.Generation, now.Time, condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonFailed, message))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		d.tell("Plan", &p.ObjectMeta, true, "PlanFailed", "%s", message)
	}
	return err
}

func (d *desk) finishPlan(ctx context.Context, p *v1alpha1.Plan, planned *infra.PlanResult) error {
	now := metav1.NewMicroTime(d.clock.Now())
	complete := condition(v1alpha1.PlanComplete, true, v1alpha1.ReasonPlanned, planned.Contents.Counts.Summary())
	if n := len(planned.Problems); n > 0 || planned.NotPlanned > 0 {
		complete = condition(v1alpha1.PlanComplete, false, v1alpha1.ReasonProblems,
			fmt.Sprintf("%d could not be planned, with what depends on them. What can be is in the plan. %s", planned.NotPlanned, planned.Contents.Counts.Summary()))
	}
	done := int64(planned.Contents.Counts.Changes)
	_, err := d.api.plans.updateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
		if finished(p) {
			return false
		}
		p.Status.Phase, p.Status.CompletionTime = v1alpha1.PlanPlanned, &now
		infra.SetContents(&p.Status, planned.Contents)
		p.Status.Problems = planned.Problems[:min(len(planned.Problems), shownProblems)]
		p.Status.Warnings = planned.Warnings[:min(len(planned.Warnings), shownProblems)]
		p.Status.Progress = v1alpha1.Progress{Done: done, Total: done + int64(planned.NotPlanned)}
		setCondition(&p.Status.Conditions, p.Generation, now.Time, complete)
		setCondition(&p.Status.Conditions, p.Generation, now.Time, condition(v1alpha1.PlanCurrent, true, v1alpha1.ReasonPlanned, "Nothing that it was computed from has moved since."))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		d.tell("Plan", &p.ObjectMeta, false, "Planned", "%s", complete.Message)
	}
	return err
}

// publish writes into objects what the plan found out about them. That it cannot be written does not
// make the plan another.
func (d *desk) publish(ctx context.Context, p *v1alpha1.Plan, planned *infra.PlanResult) {
	var group errgroup.Group
	group.SetLimit(publishing)
	var mu sync.Mutex
	var first error
	tell := func(o *infra.Object, what infra.ObjectStatus) {
		group.Go(func() error {
			if err := d.objects.UpdateStatus(ctx, o, what); err != nil && !errors.Is(err, infra.ErrStale) {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
			}
			return nil
		})
	}
	drift := func(refs []reference.Ref, is bool, reason, message string) {
		for _, ref := range refs {
			// Of a hundred thousand nearly all are as they were: those are not asked.
			if o := d.world.Object(ref); o != nil && d.feed.Drifted(ref) != is {
				tell(o, infra.ObjectStatus{Conditions: []infra.Condition{{Type: infra.ConditionDrifted, True: is, Reason: reason, Message: message}}})
			}
		}
	}
	drift(planned.Drifted, true, "Changed", fmt.Sprintf("Somebody else has changed it: plan %s shows what, and what would be done about it.", p.Name))
	drift(planned.InSync, false, "Seen", "It is as it was left.")
	for _, read := range planned.DataReads {
		tell(read.Object, read.ObjectStatus)
	}
	_ = group.Wait()
	if first != nil && ctx.Err() == nil {
		d.log.Warn("what a plan found out could not be written into all objects", "namespace", p.Namespace, "plan", p.Name, "error", first)
	}
}

// setCondition sets one, and tells whether that changed anything.
func setCondition(all *[]metav1.Condition, generation int64, now time.Time, c metav1.Condition) bool {
	c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
	return meta.SetStatusCondition(all, c)
}
