package plancontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/access"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/planstore"
)

const (
	// planningAtOnce limits how many namespaces are planned concurrently. Within a namespace, one plan is
	// computed at a time.
	planningAtOnce = 4
	// planAttempts is how often a plan is attempted before it fails.
	planAttempts = 5
	// publishConcurrency is how many objects' statuses are written concurrently.
	publishConcurrency = 8
)

// planEngine is the engine's part that plans.
type planEngine interface {
	Plan(ctx context.Context, req planner.Options, store planstore.Store) (*planner.Result, error)
}

// planning computes plans, each in a goroutine of its own.
type planning struct {
	*session
	planner    planEngine
	feed       inventoryFeed
	objects    infra.ObjectWriter
	requests   *requests
	rollbacks  *rollbacks
	status     *planStatus
	onLargeRun func(retained bool) (done func())
	slots      chan struct{}

	mu   sync.Mutex
	busy map[string]bool // by namespace: whether a plan is being computed
}

// finished reports whether a plan has its final contents.
func finished(p *v1alpha1.Plan) bool {
	switch p.Status.Phase {
	case v1alpha1.PlanPlanned, v1alpha1.PlanApplied, v1alpha1.PlanFailed:
		return true
	}
	return false
}

// advance starts the oldest unfinished plan, unless one of the namespace is being computed.
func (g *planning) advance(ctx context.Context, s *snapshot) {
	for _, p := range s.plans {
		if finished(p) || p.DeletionTimestamp != nil {
			continue
		}
		if wait, paused := g.backoffs.waits(p.UID, s.now); paused {
			g.requeueAfter(s.namespace, wait)
			continue
		}
		if g.begin(s.namespace) {
			g.running.Go(func() { g.run(ctx, p) })
		}
		return
	}
}

// begin reports whether a plan of a namespace can be computed now, and reserves that.
func (g *planning) begin(namespace string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy[namespace] {
		return false
	}
	select {
	case g.slots <- struct{}{}:
		g.busy[namespace] = true
		return true
	default:
		g.requeueAfter(namespace, reportInterval)
		return false
	}
}

func (g *planning) end(namespace string) {
	g.mu.Lock()
	delete(g.busy, namespace)
	g.mu.Unlock()
	<-g.slots
}

// run computes a plan, and records a failure.
func (g *planning) run(ctx context.Context, p *v1alpha1.Plan) {
	err := g.plan(ctx, p)
	if err != nil && ctx.Err() == nil {
		g.metrics.failed(operationPlan, err)
		g.log.Warn("planning failed", "namespace", p.Namespace, "plan", p.Name, "error", err)
		if g.backoffs.failed(p.UID) >= planAttempts {
			err = g.status.fail(ctx, p, nil, fmt.Sprintf("Planning failed: %v. Fix the cause, then create another plan.", err))
		} else {
			err = g.status.retry(ctx, p, err)
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			g.log.Warn("plan status update failed", "namespace", p.Namespace, "plan", p.Name, "error", err)
		}
	} else {
		g.backoffs.succeeded(p.UID)
	}
	g.end(p.Namespace)
	// The cache may not have the latest write yet.
	g.requeueAfter(p.Namespace, 20*time.Millisecond)
}

// plan computes a plan from scratch, and overwrites the results of earlier attempts.
func (g *planning) plan(ctx context.Context, cached *v1alpha1.Plan) error {
	started := metav1.NewMicroTime(g.clock.Now())
	p, err := g.status.start(ctx, cached, started)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if finished(p) || p.DeletionTimestamp != nil {
		return nil
	}
	if err := waitCurrent(ctx, g.feed); err != nil {
		return err
	}
	req, problems := g.requests.of(p)
	if p.Spec.Rollback != "" && len(problems) == 0 {
		if problems, err = g.rollbacks.fill(ctx, p, &req); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return g.status.fail(ctx, p, problems, fmt.Sprintf("Invalid plan: %s: %s", problems[0].Field, problems[0].Message))
	}
	var undecided []v1alpha1.Problem
	if s := g.snapshot(p.Namespace); includesWorkloads(p, s) {
		if req.Workloads, undecided, err = g.workloads.Changes(ctx, p.Namespace, s.workloads, req.Selector); err != nil {
			return err
		}
	}
	size := runSize{onLargeRun: g.onLargeRun}
	defer size.finish()
	planned, err := g.compute(ctx, p, req, &size)
	if err != nil {
		return err
	}
	planned.Problems = append(planned.Problems, undecided...)
	planned.NotPlanned += len(undecided)
	if len(p.Spec.Objects) == 0 {
		g.publish(ctx, p, planned)
	}
	return g.status.finish(ctx, p, planned)
}

// compute calls the engine and reports progress meanwhile.
func (g *planning) compute(ctx context.Context, p *v1alpha1.Plan, req planner.Options, size *runSize) (*planner.Result, error) {
	store := apistore.NewPlanStore(g.dynamic, p)
	var err error
	if req.Salt, err = store.NewSalt(ctx); err != nil {
		return nil, err
	}
	var progress reporter[[2]int]
	req.OnProgress = func(done, total int) { progress.set([2]int{done, total}) }
	req.OnProviderCall = size.observe
	stop := progress.start(ctx, g.clock, g.status.progress(p))
	defer stop()
	return g.planner.Plan(access.ForPlan(ctx, p, req.Workloads), req, store)
}

// publish writes the plan's findings into the statuses of objects. A failure to write them does not change
// the plan.
func (g *planning) publish(ctx context.Context, p *v1alpha1.Plan, planned *planner.Result) {
	var group errgroup.Group
	group.SetLimit(publishConcurrency)
	var mu sync.Mutex
	var first error
	tell := func(o *infra.Object, result infra.ObjectStatus) {
		group.Go(func() error {
			if err := g.objects.UpdateStatus(ctx, o, result); err != nil && !errors.Is(err, infra.ErrStale) {
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
			if o := g.inventory.Object(ref); o != nil && g.feed.Drifted(ref) != is {
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
		g.log.Warn("status updates of planned objects failed", "namespace", p.Namespace, "plan", p.Name, "error", first)
	}
}
