package plancontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// applyingAtOnce limits how many namespaces are applied concurrently. Within a namespace, one apply runs at a
// time.
const applyingAtOnce = 16

// applying decides when applies start and stop.
type applying struct {
	*session
	approvals *planPolicies
	runner    *applyRunner
	status    *applyStatus
	slots     chan struct{}

	mu   sync.Mutex
	runs map[string]*applyRun // by namespace
}

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

// advance starts the next apply if none of the namespace runs: one that had begun before comes first,
// then the oldest that may start. The others wait, and their conditions say why.
func (y *applying) advance(ctx context.Context, s *snapshot) error {
	var last error
	running := y.runOf(s.namespace)
	if running != nil {
		handleCancel(s, running)
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
		if wait, paused := y.backoffs.waits(a.UID, s.now); paused {
			y.requeueAfter(s.namespace, wait)
			continue
		}
		if first != nil && a != first {
			last = firstError(last, y.status.pending(ctx, a, v1alpha1.ReasonAnotherApply, "Waiting for Apply "+first.Name+"."))
			continue
		}
		if running != nil && !a.Spec.Cancel {
			last = firstError(last, y.status.pending(ctx, a, v1alpha1.ReasonAnotherApply, "Waiting for Apply "+running.name+"."))
			continue
		}
		started, err := y.start(ctx, s, a)
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
func handleCancel(s *snapshot, running *applyRun) {
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

// start starts an apply, or records why not. It reports whether the apply runs.
func (y *applying) start(ctx context.Context, s *snapshot, cached *v1alpha1.Apply) (runs bool, err error) {
	// Read from the API and not from the cache: an approval that was withdrawn a moment ago must not count.
	a, err := y.api.applies.Get(ctx, cached.Namespace, cached.Name)
	if apierrors.IsNotFound(err) || err == nil && (a.UID != cached.UID || ended(a)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	select {
	case y.slots <- struct{}{}:
	default:
		y.requeueAfter(s.namespace, reportInterval)
		return false, y.status.pending(ctx, a, v1alpha1.ReasonAnotherApply, "Waiting for an apply in another namespace: the limit of concurrent applies is reached.")
	}
	defer func() {
		if !runs {
			<-y.slots
		}
	}()
	p, err := y.api.plans.Get(ctx, a.Namespace, a.Spec.Plan)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if err != nil {
		p = nil
	}
	if !begun(a) {
		record, err := y.prepare(ctx, s, a, p)
		if err != nil || record != nil {
			if record != nil {
				err = record(ctx)
			}
			return false, err
		}
	} else if p == nil {
		return false, y.status.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed,
			fmt.Sprintf("Plan %s was deleted during the apply: unfinished changes are recorded in ResourceStates as pending. Create another plan.", a.Spec.Plan))
	}
	run := &applyRun{uid: a.UID, name: a.Name, canceled: make(chan struct{})}
	if a.Spec.Cancel || a.DeletionTimestamp != nil {
		run.stop()
	}
	y.mu.Lock()
	y.runs[s.namespace] = run
	y.mu.Unlock()
	y.running.Go(func() {
		y.runner.run(ctx, run, a, p)
		y.end(a.Namespace)
	})
	return true, nil
}

// runOf returns the running apply of a namespace, or nil.
func (y *applying) runOf(namespace string) *applyRun {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.runs[namespace]
}

// end makes room for the next apply.
func (y *applying) end(namespace string) {
	y.mu.Lock()
	delete(y.runs, namespace)
	y.mu.Unlock()
	<-y.slots
	y.requeueAfter(namespace, 20*time.Millisecond)
}

// decide decides by approvals that it reads from the API.
func (y *applying) decide(ctx context.Context, s *snapshot, p *v1alpha1.Plan) (approval.Decision, error) {
	approvals, err := y.api.approvals.List(ctx, p.Namespace)
	if err != nil {
		return approval.Decision{}, err
	}
	by, err := y.approvals.of(ctx, s, p, true)
	if err != nil {
		return approval.Decision{}, err
	}
	return approval.Decide(p, approvals, by.policies, by.authors, y.clock.Now(), evaluateWithin(ctx)), nil
}

// prepare marks an apply as running and returns nil. If the apply cannot start, it returns a function that
// records why.
func (y *applying) prepare(ctx context.Context, s *snapshot, a *v1alpha1.Apply, p *v1alpha1.Plan) (func(context.Context) error, error) {
	fail := func(format string, args ...any) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			return y.status.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf(format, args...))
		}, nil
	}
	pending := func(reason, format string, args ...any) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return y.status.pending(ctx, a, reason, fmt.Sprintf(format, args...)) }, nil
	}
	switch {
	case a.Spec.Cancel:
		return func(ctx context.Context) error {
			return y.status.end(ctx, a, v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled, "The apply was cancelled before it began.")
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
	if err := planstore.ContentsOf(&p.Status).Check(a.Spec.Digest); err != nil {
		return fail("Plan %s was modified after it was computed: %v. Create another plan and apply that.", p.Name, err)
	}
	v := approval.Decision{Approved: true, WindowOpen: true}
	if !hasNoEffect(p) {
		var err error
		if v, err = y.decide(ctx, s, p); err != nil {
			return nil, err
		}
	}
	switch {
	case !v.Approved:
		y.requeueAfter(s.namespace, checkInterval*10)
		return pending(v1alpha1.ReasonNotApproved, "%s", v.Message)
	case !v.WindowOpen && v.OpensAt.IsZero():
		return pending(v1alpha1.ReasonOutsideWindow, "The policy has no future window.")
	case !v.WindowOpen:
		y.requeueAfter(s.namespace, v.OpensAt.Sub(s.now))
		return pending(v1alpha1.ReasonOutsideWindow, "Waiting for the policy's next window at %s.", v.OpensAt.UTC().Format(time.RFC3339))
	}
	marked, err := y.status.begin(ctx, a, v.ApprovedBy)
	if err != nil {
		return nil, err
	}
	if !begun(marked) {
		// It was cancelled in between: the next reconciliation handles that.
		return func(context.Context) error { y.requeueAfter(a.Namespace, 0); return nil }, nil
	}
	return nil, nil
}
