package plans

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
)

// defaultParallelism is of an Apply that says none.
const defaultParallelism = 10

// applyRun is an apply that is being carried out.
type applyRun struct {
	uid      types.UID
	name     string
	cancel   sync.Once
	canceled chan struct{}
}

func (r *applyRun) stop() { r.cancel.Do(func() { close(r.canceled) }) }

func ended(a *v1alpha1.Apply) bool {
	switch a.Status.Phase {
	case v1alpha1.ApplySucceeded, v1alpha1.ApplyFailed, v1alpha1.ApplyCanceled:
		return true
	}
	return false
}

func begun(a *v1alpha1.Apply) bool {
	return a.Status.Phase == v1alpha1.ApplyRunning || a.Status.Phase == v1alpha1.ApplyCanceling
}

// advanceApplies begins the next one, if none of the namespace runs: what was begun before first, then the oldest that may.
// The others are told what they wait for.
func (d *desk) advanceApplies(ctx context.Context, s *scene) error {
	var last error
	d.mu.Lock()
	running := d.applying[s.namespace]
	d.mu.Unlock()
	if running != nil {
		d.heedCancel(s, running)
	}
	var first *v1alpha1.Apply
	for _, a := range s.applies {
		if begun(a) && running == nil {
			first = a
			break
		}
	}
	for _, a := range s.applies {
		if ended(a) || a.DeletionTimestamp != nil && !begun(a) || running != nil && a.UID == running.uid {
			continue
		}
		if wait, paused := d.paused(a.UID, s.now); paused {
			d.later(s.namespace, wait)
			continue
		}
		if first != nil && a != first {
			last = orElse(last, d.wait(ctx, a, v1alpha1.ReasonAnotherApply, "It comes after Apply "+first.Name+"."))
			continue
		}
		if running != nil && !a.Spec.Cancel {
			last = orElse(last, d.wait(ctx, a, v1alpha1.ReasonAnotherApply, "It comes after Apply "+running.name+"."))
			continue
		}
		started, err := d.beginApply(ctx, s, a)
		last = orElse(last, err)
		if started {
			running = &applyRun{uid: a.UID, name: a.Name}
		}
	}
	return last
}

func orElse(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// heedCancel ends what runs if somebody asked for that, or deleted the Apply.
func (d *desk) heedCancel(s *scene, running *applyRun) {
	for _, a := range s.applies {
		if a.UID == running.uid {
			if a.Spec.Cancel || a.DeletionTimestamp != nil {
				running.stop()
			}
			return
		}
	}
	// The cache has it, or had: it was begun from there.
	running.stop()
}

// wait says of an apply that it is not its turn.
func (d *desk) wait(ctx context.Context, a *v1alpha1.Apply, reason, message string) error {
	change := func(a *v1alpha1.Apply) bool {
		if ended(a) || begun(a) {
			return false
		}
		changed := a.Status.Phase != v1alpha1.ApplyPending
		a.Status.Phase = v1alpha1.ApplyPending
		return setCondition(&a.Status.Conditions, a.Generation, d.clock.Now(), condition(v1alpha1.ApplyComplete, false, reason, message)) || changed
	}
	if !change(a.DeepCopy()) {
		return nil
	}
	_, err := d.api.applies.updateStatus(ctx, a.Namespace, a.Name, a.UID, change)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// end ends an apply that did nothing.
func (d *desk) end(ctx context.Context, a *v1alpha1.Apply, phase v1alpha1.ApplyPhase, reason, message string) error {
	now := metav1.NewMicroTime(d.clock.Now())
	_, err := d.api.applies.updateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase, a.Status.CompletionTime = phase, &now
		setCondition(&a.Status.Conditions, a.Generation, now.Time, condition(v1alpha1.ApplyComplete, false, reason, message))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		d.tell("Apply", &a.ObjectMeta, phase == v1alpha1.ApplyFailed, "Apply"+string(phase), "%s", message)
	}
	return err
}

// beginApply begins one, or says why not. It tells whether it runs.
func (d *desk) beginApply(ctx context.Context, s *scene, cached *v1alpha1.Apply) (runs bool, err error) {
	// What decides is read anew: an approval that was taken back a moment ago counts no more.
	a, err := d.api.applies.get(ctx, cached.Namespace, cached.Name)
	if apierrors.IsNotFound(err) || err == nil && (a.UID != cached.UID || ended(a)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	select {
	case d.applySlots <- struct{}{}:
	default:
		d.later(s.namespace, tellEvery)
		return false, d.wait(ctx, a, v1alpha1.ReasonAnotherApply, "As many as may are being carried out in other namespaces. It comes after one of them.")
	}
	defer func() {
		if !runs {
			<-d.applySlots
		}
	}()
	p, err := d.api.plans.get(ctx, a.Namespace, a.Spec.Plan)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if err != nil {
		p = nil
	}
	if !begun(a) {
		why, err := d.obstacle(ctx, s, a, p)
		if err != nil || why != nil {
			if why != nil {
				err = why(ctx)
			}
			return false, err
		}
	} else if p == nil {
		return false, d.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed,
			fmt.Sprintf("Its plan %s was deleted while it was carried out: what was begun is in ResourceStates as pending. Make another plan.", a.Spec.Plan))
	}
	run := &applyRun{uid: a.UID, name: a.Name, canceled: make(chan struct{})}
	if a.Spec.Cancel || a.DeletionTimestamp != nil {
		run.stop()
	}
	d.mu.Lock()
	d.applying[s.namespace] = run
	d.mu.Unlock()
	d.running.Go(func() { d.applied(ctx, run, a, p) })
	return true, nil
}

// approvedNow reads the approvals of a plan anew, and judges.
func (d *desk) approvedNow(ctx context.Context, s *scene, p *v1alpha1.Plan) (verdict, error) {
	list, err := d.api.approvals.in(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return verdict{}, err
	}
	var approvals []*v1alpha1.Approval
	for i := range list.Items {
		one, err := d.api.approvals.read(&list.Items[i], nil)
		if err != nil {
			return verdict{}, err
		}
		approvals = append(approvals, one)
	}
	policies, err := d.concerned(ctx, s, p, true)
	if err != nil {
		return verdict{}, err
	}
	return judge(ctx, p, approvals, policies, d.clock.Now()), nil
}

// obstacle gives what is to be done instead of beginning an apply, or marks it as begun and gives nothing.
func (d *desk) obstacle(ctx context.Context, s *scene, a *v1alpha1.Apply, p *v1alpha1.Plan) (func(context.Context) error, error) {
	fail := func(format string, args ...any) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			return d.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf(format, args...))
		}, nil
	}
	pending := func(reason, format string, args ...any) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return d.wait(ctx, a, reason, fmt.Sprintf(format, args...)) }, nil
	}
	switch {
	case a.Spec.Cancel:
		return func(ctx context.Context) error {
			return d.end(ctx, a, v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled, "It was cancelled before anything was begun.")
		}, nil
	case p == nil:
		return fail("There is no plan %s: make one, and apply that.", a.Spec.Plan)
	case p.Status.Phase == v1alpha1.PlanFailed:
		return fail("Plan %s failed: make another, and apply that.", p.Name)
	case p.Status.Phase == v1alpha1.PlanApplied:
		return fail("Plan %s was carried out before: make another for what is left, and apply that.", p.Name)
	case p.Status.Phase != v1alpha1.PlanPlanned:
		return pending(v1alpha1.ReasonNotApproved, "Plan %s is not made yet.", p.Name)
	case p.Status.Digest != a.Spec.Digest:
		return fail("Plan %s has the digest %s: look at it again, and apply that.", p.Name, p.Status.Digest)
	case speculative(p):
		return fail("Plan %s is of objects that nobody wrote: write them with kubectl apply, make another plan, and apply that.", p.Name)
	}
	if err := infra.Contents(&p.Status).Check(a.Spec.Digest); err != nil {
		return fail("Plan %s was changed after it was made: %v. Make another, and apply that.", p.Name, err)
	}
	v := verdict{approved: true, open: true}
	if !nothingToDo(p) {
		var err error
		if v, err = d.approvedNow(ctx, s, p); err != nil {
			return nil, err
		}
	}
	switch {
	case !v.approved:
		d.later(s.namespace, lookEvery*10)
		return pending(v1alpha1.ReasonNotApproved, "%s", v.message)
	case !v.open && v.opens.IsZero():
		return pending(v1alpha1.ReasonOutsideWindow, "No window of the policy opens again.")
	case !v.open:
		d.later(s.namespace, v.opens.Sub(s.now))
		return pending(v1alpha1.ReasonOutsideWindow, "It begins when a window opens, at %s.", v.opens.UTC().Format(time.RFC3339))
	}
	now := metav1.NewMicroTime(d.clock.Now())
	marked, err := d.api.applies.updateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) || a.Spec.Cancel {
			return false
		}
		a.Status.Phase, a.Status.StartTime, a.Status.ApprovedBy = v1alpha1.ApplyRunning, &now, v.by
		setCondition(&a.Status.Conditions, a.Generation, now.Time, condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, "It is being carried out."))
		return true
	})
	if err != nil {
		return nil, err
	}
	if !begun(marked) {
		// Somebody cancelled it at this moment: that is seen the next time.
		return func(context.Context) error { d.later(a.Namespace, 0); return nil }, nil
	}
	return nil, nil
}

// applied carries an apply out, and notes how that ended.
func (d *desk) applied(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan) {
	err := d.apply(ctx, run, a, p)
	if err != nil && ctx.Err() == nil {
		d.failed(a.UID)
		d.log.Warn("an apply was interrupted; it goes on", "namespace", a.Namespace, "apply", a.Name, "error", err)
		_, err = d.api.applies.updateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
			return !ended(a) && setCondition(&a.Status.Conditions, a.Generation, d.clock.Now(),
				condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, fmt.Sprintf("It was interrupted, and goes on: %v.", err)))
		})
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			d.log.Warn("what became of an apply could not be written", "namespace", a.Namespace, "apply", a.Name, "error", err)
		}
	} else {
		d.succeeded(a.UID)
	}
	d.mu.Lock()
	delete(d.applying, a.Namespace)
	d.mu.Unlock()
	<-d.applySlots
	d.later(a.Namespace, 20*time.Millisecond)
}

func (d *desk) apply(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan) error {
	store := newPlanStore(d.api, p)
	salt, err := store.salt(ctx)
	if err != nil {
		return err
	}
	if p.Spec.Rollback != "" {
		if ended, err := d.writeBack(ctx, a, p); ended || err != nil {
			return err
		}
	}
	if err := d.current(ctx); err != nil {
		return err
	}
	what := infra.ApplyOptions{
		Namespace: a.Namespace, Contents: infra.Contents(&p.Status), Digest: a.Spec.Digest, Salt: salt,
		Apply: a.Name, ApplyUID: string(a.UID), Server: d.journal, Mode: modeOf(&p.Spec),
		Parallelism: int(a.Spec.Parallelism), Canceled: run.canceled, OnStored: d.stored,
	}
	if what.Parallelism == 0 {
		what.Parallelism = defaultParallelism
	}
	var how reporter[infra.ApplyResult]
	work := effort{large: d.large, stays: true}
	defer work.end()
	what.OnProgress = func(now infra.ApplyResult) {
		work.of(now.Total)
		how.tell(now)
	}
	var speed pace
	stop := how.begin(ctx, d.clock, func(ctx context.Context, now infra.ApplyResult) { d.applyProgress(ctx, run, a, &speed, &now) })
	// What is secret is read when it is needed: it is to be what it is then.
	done, err := d.engine.Apply(withPlan(withRun(ctx, a.Namespace, false), p), what, store)
	stop()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // it goes on elsewhere
	}
	return d.finishApply(ctx, run, a, p, done)
}

// stored lets go of what a provider answered. What is not let go of is kept for a while longer, and nothing comes of that.
func (d *desk) stored(call string) {
	if d.acknowledge == nil {
		return
	}
	if err := d.acknowledge(call); err != nil {
		d.log.Warn("what a provider answered is kept for longer than it is needed", "error", err)
	}
}

// show writes into a status what came of it so far.
func show(status *v1alpha1.ApplyStatus, now *infra.ApplyResult) {
	status.Succeeded, status.Failed, status.Refused, status.Blocked = now.Succeeded, now.Failed, now.Refused, now.Blocked
	status.Done = now.Summary
	status.Problems = now.Problems[:min(len(now.Problems), shownProblems)]
	status.Warnings = now.Warnings[:min(len(now.Warnings), shownProblems)]
}

func stopping(run *applyRun) bool {
	select {
	case <-run.canceled:
		return true
	default:
		return false
	}
}

func (d *desk) applyProgress(ctx context.Context, run *applyRun, a *v1alpha1.Apply, speed *pace, now *infra.ApplyResult) {
	progress := speed.progress(d.clock.Now(), now.Succeeded+now.Failed+now.Refused+now.Blocked, now.Total)
	var names []string
	for _, address := range now.Running {
		names = append(names, address.String())
	}
	message := "It is being carried out."
	if len(names) > 0 {
		message = "Being changed now: " + strings.Join(names, ", ") + "."
	}
	_, err := d.api.applies.updateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase = v1alpha1.ApplyRunning
		if stopping(run) {
			a.Status.Phase = v1alpha1.ApplyCanceling
		}
		a.Status.Progress = progress
		show(&a.Status, now)
		setCondition(&a.Status.Conditions, a.Generation, d.clock.Now(), condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, message))
		return true
	})
	if err != nil && ctx.Err() == nil {
		d.log.Debug("how far an apply is could not be written", "namespace", a.Namespace, "apply", a.Name, "error", err)
	}
}

// doneText says what was done. Of what was approved, something may have turned out to be right already.
func doneText(d *v1alpha1.PlanSummary) string {
	var parts []string
	for _, one := range []struct {
		count int64
		words string
	}{{d.Import, "imported"}, {d.Create, "created"}, {d.Update, "updated"}, {d.Replace, "replaced"}, {d.Delete, "deleted"}, {d.Forget, "forgotten"}, {d.Read, "read"}, {d.Place, "changed in clusters"}} {
		if one.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.count, one.words))
		}
	}
	if len(parts) == 0 {
		return "nothing had to be changed"
	}
	return strings.Join(parts, ", ")
}

// finishApply says first of the plan that it was carried out: a server that dies in between finds the apply
// running, and comes here again.
func (d *desk) finishApply(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan, done *infra.ApplyResult) error {
	now := metav1.NewMicroTime(d.clock.Now())
	_, err := d.api.plans.updateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
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
	message := "All is done: " + doneText(&done.Summary) + "."
	switch bad := done.Failed + done.Refused + done.Blocked; {
	case stopping(run) && done.Canceled > 0:
		phase, reason, event = v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled, "ApplyCanceled"
		message = fmt.Sprintf("It was cancelled: %d done, %d not begun, %d failed, refused or blocked. Make another plan for what is left.", done.Succeeded, done.Canceled, bad)
	case bad > 0:
		phase, reason, event = v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, "ApplyFailed"
		message = fmt.Sprintf("%d done, %d failed, %d refused because they had moved, %d not begun because of those. Make another plan for what is left.",
			done.Succeeded, done.Failed, done.Refused, done.Blocked)
	}
	_, err = d.api.applies.updateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase, a.Status.CompletionTime = phase, &now
		show(&a.Status, done)
		a.Status.Progress = v1alpha1.Progress{Done: done.Succeeded + done.Failed + done.Refused + done.Blocked, Total: done.Total}
		setCondition(&a.Status.Conditions, a.Generation, now.Time, condition(v1alpha1.ApplyComplete, phase == v1alpha1.ApplySucceeded, reason, message))
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		d.tell("Apply", &a.ObjectMeta, phase == v1alpha1.ApplyFailed, event, "%s", message)
	}
	return err
}
