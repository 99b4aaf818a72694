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
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/placing"
)

// defaultParallelism applies to an Apply that sets none.
const defaultParallelism = 10

// applyRun is a running apply.
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

// advanceApplies starts the next apply if none of the namespace runs: one that had begun before comes first,
// then the oldest that may start. The others wait, and their conditions say why.
func (r *reconciler) advanceApplies(ctx context.Context, s *snapshot) error {
	var last error
	r.mu.Lock()
	running := r.applying[s.namespace]
	r.mu.Unlock()
	if running != nil {
		r.handleCancel(s, running)
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
		if wait, paused := r.inBackoff(a.UID, s.now); paused {
			r.requeueAfter(s.namespace, wait)
			continue
		}
		if first != nil && a != first {
			last = firstError(last, r.setPending(ctx, a, v1alpha1.ReasonAnotherApply, "Waiting for Apply "+first.Name+"."))
			continue
		}
		if running != nil && !a.Spec.Cancel {
			last = firstError(last, r.setPending(ctx, a, v1alpha1.ReasonAnotherApply, "Waiting for Apply "+running.name+"."))
			continue
		}
		started, err := r.startApply(ctx, s, a)
		last = firstError(last, err)
		if started {
			running = &applyRun{uid: a.UID, name: a.Name}
		}
	}
	return last
}

func firstError(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// handleCancel stops the running apply if its spec.cancel is set or it was deleted.
func (r *reconciler) handleCancel(s *snapshot, running *applyRun) {
	for _, a := range s.applies {
		if a.UID == running.uid {
			if a.Spec.Cancel || a.DeletionTimestamp != nil {
				running.stop()
			}
			return
		}
	}
	// The run was started from the cache, so an Apply that is missing there was deleted.
	running.stop()
}

// setPending records why an apply does not start yet.
func (r *reconciler) setPending(ctx context.Context, a *v1alpha1.Apply, reason, message string) error {
	change := func(a *v1alpha1.Apply) bool {
		if ended(a) || begun(a) {
			return false
		}
		changed := a.Status.Phase != v1alpha1.ApplyPending
		a.Status.Phase = v1alpha1.ApplyPending
		return setCondition(&a.Status.Conditions, a.Generation, r.clock.Now(), controllers.Condition(v1alpha1.ApplyComplete, false, reason, message)) || changed
	}
	if !change(a.DeepCopy()) {
		return nil
	}
	_, err := r.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, change)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// endApply ends an apply that did nothing.
func (r *reconciler) endApply(ctx context.Context, a *v1alpha1.Apply, phase v1alpha1.ApplyPhase, reason, message string) error {
	now := metav1.NewMicroTime(r.clock.Now())
	written, err := r.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
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
		r.metrics.applyFinished(written, nil)
		r.recordEvent("Apply", &a.ObjectMeta, phase == v1alpha1.ApplyFailed, "Apply"+string(phase), "%s", message)
	}
	return err
}

// startApply starts an apply, or records why not. It reports whether the apply runs.
func (r *reconciler) startApply(ctx context.Context, s *snapshot, cached *v1alpha1.Apply) (runs bool, err error) {
	// Read from the API and not from the cache: an approval that was withdrawn a moment ago must not count.
	a, err := r.api.applies.Get(ctx, cached.Namespace, cached.Name)
	if apierrors.IsNotFound(err) || err == nil && (a.UID != cached.UID || ended(a)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	select {
	case r.applySlots <- struct{}{}:
	default:
		r.requeueAfter(s.namespace, reportInterval)
		return false, r.setPending(ctx, a, v1alpha1.ReasonAnotherApply, "Waiting for an apply in another namespace: the limit of concurrent applies is reached.")
	}
	defer func() {
		if !runs {
			<-r.applySlots
		}
	}()
	p, err := r.api.plans.Get(ctx, a.Namespace, a.Spec.Plan)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if err != nil {
		p = nil
	}
	if !begun(a) {
		record, err := r.prepare(ctx, s, a, p)
		if err != nil || record != nil {
			if record != nil {
				err = record(ctx)
			}
			return false, err
		}
	} else if p == nil {
		return false, r.endApply(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed,
			fmt.Sprintf("Plan %s was deleted during the apply: unfinished changes are recorded in ResourceStates as pending. Create another plan.", a.Spec.Plan))
	}
	run := &applyRun{uid: a.UID, name: a.Name, canceled: make(chan struct{})}
	if a.Spec.Cancel || a.DeletionTimestamp != nil {
		run.stop()
	}
	r.mu.Lock()
	r.applying[s.namespace] = run
	r.mu.Unlock()
	r.running.Go(func() { r.runApply(ctx, run, a, p) })
	return true, nil
}

// currentDecision decides by approvals that it reads from the API.
func (r *reconciler) currentDecision(ctx context.Context, s *snapshot, p *v1alpha1.Plan) (approval.Decision, error) {
	approvals, err := r.api.approvals.List(ctx, p.Namespace)
	if err != nil {
		return approval.Decision{}, err
	}
	policies, err := r.policiesOf(ctx, s, p, true)
	if err != nil {
		return approval.Decision{}, err
	}
	return approval.Decide(p, approvals, policies, r.clock.Now(), evaluateWithin(ctx)), nil
}

// prepare marks an apply as running and returns nil. If the apply cannot start, it returns a function that
// records why.
func (r *reconciler) prepare(ctx context.Context, s *snapshot, a *v1alpha1.Apply, p *v1alpha1.Plan) (func(context.Context) error, error) {
	fail := func(format string, args ...any) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			return r.endApply(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf(format, args...))
		}, nil
	}
	pending := func(reason, format string, args ...any) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return r.setPending(ctx, a, reason, fmt.Sprintf(format, args...)) }, nil
	}
	switch {
	case a.Spec.Cancel:
		return func(ctx context.Context) error {
			return r.endApply(ctx, a, v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled, "The apply was cancelled before it began.")
		}, nil
	case p == nil:
		return fail("Plan %s not found: create a plan and apply that.", a.Spec.Plan)
	case p.Status.Phase == v1alpha1.PlanFailed:
		return fail("Plan %s failed: create another plan and apply that.", p.Name)
	case p.Status.Phase == v1alpha1.PlanApplied:
		return fail("Plan %s was already applied: create another plan for the rest and apply that.", p.Name)
	case p.Status.Phase != v1alpha1.PlanPlanned:
		return pending(v1alpha1.ReasonNotApproved, "Waiting for plan %s to be computed.", p.Name)
	case p.Status.Digest != a.Spec.Digest:
		return fail("Plan %s has another digest, %s: review it again and apply that.", p.Name, p.Status.Digest)
	case isSpeculative(p):
		return fail("Plan %s is speculative: create its objects with kubectl apply, create another plan and apply that.", p.Name)
	}
	if err := infra.Contents(&p.Status).Check(a.Spec.Digest); err != nil {
		return fail("Plan %s was modified after it was computed: %v. Create another plan and apply that.", p.Name, err)
	}
	v := approval.Decision{Approved: true, WindowOpen: true}
	if !hasNoEffect(p) {
		var err error
		if v, err = r.currentDecision(ctx, s, p); err != nil {
			return nil, err
		}
	}
	switch {
	case !v.Approved:
		r.requeueAfter(s.namespace, checkInterval*10)
		return pending(v1alpha1.ReasonNotApproved, "%s", v.Message)
	case !v.WindowOpen && v.OpensAt.IsZero():
		return pending(v1alpha1.ReasonOutsideWindow, "The policy has no future window.")
	case !v.WindowOpen:
		r.requeueAfter(s.namespace, v.OpensAt.Sub(s.now))
		return pending(v1alpha1.ReasonOutsideWindow, "Waiting for the policy's next window at %s.", v.OpensAt.UTC().Format(time.RFC3339))
	}
	now := metav1.NewMicroTime(r.clock.Now())
	marked, err := r.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) || a.Spec.Cancel {
			return false
		}
		a.Status.Phase, a.Status.StartTime, a.Status.ApprovedBy = v1alpha1.ApplyRunning, &now, v.ApprovedBy
		setCondition(&a.Status.Conditions, a.Generation, now.Time, controllers.Condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, "Applying."))
		return true
	})
	if err != nil {
		return nil, err
	}
	if !begun(marked) {
		// It was cancelled in between: the next reconciliation handles that.
		return func(context.Context) error { r.requeueAfter(a.Namespace, 0); return nil }, nil
	}
	return nil, nil
}

// runApply carries out an apply, and records an interruption.
func (r *reconciler) runApply(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan) {
	err := r.apply(ctx, run, a, p)
	if err != nil && ctx.Err() == nil {
		r.recordFailure(a.UID)
		r.metrics.failed(operationApply, err)
		r.log.Warn("apply interrupted; resuming", "namespace", a.Namespace, "apply", a.Name, "error", err)
		_, err = r.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
			return !ended(a) && setCondition(&a.Status.Conditions, a.Generation, r.clock.Now(),
				controllers.Condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, fmt.Sprintf("The apply was interrupted and will resume: %v.", err)))
		})
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			r.log.Warn("apply status update failed", "namespace", a.Namespace, "apply", a.Name, "error", err)
		}
	} else {
		r.clearFailures(a.UID)
	}
	r.mu.Lock()
	delete(r.applying, a.Namespace)
	r.mu.Unlock()
	<-r.applySlots
	r.requeueAfter(a.Namespace, 20*time.Millisecond)
}

func (r *reconciler) apply(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan) error {
	store := apistore.NewPlanStore(r.dynamic, p)
	salt, err := store.Salt(ctx)
	if err != nil {
		return err
	}
	if p.Spec.Rollback != "" {
		if ended, err := r.writeBack(ctx, a, p); ended || err != nil {
			return err
		}
	}
	if err := r.syncInventory(ctx); err != nil {
		return err
	}
	req := infra.ApplyOptions{
		Namespace: a.Namespace, Contents: infra.Contents(&p.Status), Digest: a.Spec.Digest, Salt: salt,
		Apply: a.Name, ApplyUID: string(a.UID), Server: r.journal, Mode: modeOf(&p.Spec),
		Parallelism: int(a.Spec.Parallelism), Canceled: run.canceled, OnStored: r.acknowledgeCall,
	}
	if req.Parallelism == 0 {
		req.Parallelism = defaultParallelism
	}
	var progress reporter[infra.ApplyResult]
	size := runSize{onLargeRun: r.onLargeRun, retained: true}
	defer size.finish()
	req.OnProgress = func(now infra.ApplyResult) {
		size.observe(now.Total)
		progress.set(now)
	}
	var rate rateEstimator
	stop := progress.start(ctx, r.clock, func(ctx context.Context, now infra.ApplyResult) { r.applyProgress(ctx, run, a, &rate, &now) })
	// Secrets are read when they are needed, with their values of that time.
	done, err := r.engine.Apply(placing.WithPlan(apistore.ForApply(ctx, a.Namespace), p), req, store)
	stop()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // another server resumes it
	}
	return r.finishApply(ctx, run, a, p, done)
}

// acknowledgeCall lets the provider drop the answer of a call. After a failure it is kept for a while longer,
// which does no harm.
func (r *reconciler) acknowledgeCall(call string) {
	if r.acknowledge == nil {
		return
	}
	if err := r.acknowledge(call); err != nil {
		r.log.Warn("acknowledge of a provider call failed; its answer is kept longer", "error", err)
	}
}

// setResult copies an apply's results so far into its status.
func setResult(status *v1alpha1.ApplyStatus, now *infra.ApplyResult) {
	status.Succeeded, status.Failed, status.Refused, status.Blocked = now.Succeeded, now.Failed, now.Refused, now.Blocked
	status.Done = now.Summary
	status.Problems = now.Problems[:min(len(now.Problems), shownProblems)]
	status.Warnings = now.Warnings[:min(len(now.Warnings), shownProblems)]
}

func canceled(run *applyRun) bool {
	select {
	case <-run.canceled:
		return true
	default:
		return false
	}
}

func (r *reconciler) applyProgress(ctx context.Context, run *applyRun, a *v1alpha1.Apply, rate *rateEstimator, now *infra.ApplyResult) {
	progress := rate.progress(r.clock.Now(), now.Succeeded+now.Failed+now.Refused+now.Blocked, now.Total)
	var names []string
	for _, address := range now.Running {
		names = append(names, address.String())
	}
	message := "Applying."
	if len(names) > 0 {
		message = "Applying " + strings.Join(names, ", ") + "."
	}
	_, err := r.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
		if ended(a) {
			return false
		}
		a.Status.Phase = v1alpha1.ApplyRunning
		if canceled(run) {
			a.Status.Phase = v1alpha1.ApplyCanceling
		}
		a.Status.Progress = progress
		setResult(&a.Status, now)
		setCondition(&a.Status.Conditions, a.Generation, r.clock.Now(), controllers.Condition(v1alpha1.ApplyComplete, false, v1alpha1.ReasonRunning, message))
		return true
	})
	if err != nil && ctx.Err() == nil {
		r.log.Debug("apply progress update failed", "namespace", a.Namespace, "apply", a.Name, "error", err)
	}
}

// doneText summarizes the changes that were made. Some approved changes may have turned out to be
// unnecessary.
func doneText(s *v1alpha1.PlanSummary) string {
	var parts []string
	for _, one := range []struct {
		count int64
		words string
	}{{s.Import, "imported"}, {s.Create, "created"}, {s.Update, "updated"}, {s.Replace, "replaced"}, {s.Delete, "deleted"}, {s.Forget, "forgotten"}, {s.Read, "read"}, {s.Place, "changed in clusters"}} {
		if one.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.count, one.words))
		}
	}
	if len(parts) == 0 {
		return "no changes were necessary"
	}
	return strings.Join(parts, ", ")
}

// finishApply marks the plan as applied first: a server that dies in between finds the apply running, and
// returns here.
func (r *reconciler) finishApply(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan, done *infra.ApplyResult) error {
	now := metav1.NewMicroTime(r.clock.Now())
	_, err := r.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, func(p *v1alpha1.Plan) bool {
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
	case canceled(run) && done.Canceled > 0:
		phase, reason, event = v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled, "ApplyCanceled"
		message = fmt.Sprintf("Apply cancelled: %d applied, %d not started, %d failed, rejected or blocked. Create another plan for the rest.", done.Succeeded, done.Canceled, bad)
	case bad > 0:
		phase, reason, event = v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, "ApplyFailed"
		message = fmt.Sprintf("%d applied, %d failed, %d rejected as stale, %d blocked by those. Create another plan for the rest.",
			done.Succeeded, done.Failed, done.Refused, done.Blocked)
	}
	written, err := r.api.applies.UpdateStatus(ctx, a.Namespace, a.Name, a.UID, func(a *v1alpha1.Apply) bool {
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
		r.metrics.applyFinished(written, done)
		r.recordEvent("Apply", &a.ObjectMeta, phase == v1alpha1.ApplyFailed, event, "%s", message)
	}
	return err
}
