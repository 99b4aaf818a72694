package plancontroller

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/access"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/applier"
	"github.com/atoll-dev/atoll/infra/placing"
	"github.com/atoll-dev/atoll/infra/planstore"
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

// isCanceled reports whether the run was stopped.
func (r *applyRun) isCanceled() bool {
	select {
	case <-r.canceled:
		return true
	default:
		return false
	}
}

// applyEngine is the engine's part that applies.
type applyEngine interface {
	Apply(ctx context.Context, req applier.Options, store planstore.Store) (*applier.Result, error)
}

// applyRunner carries out applies, each in a goroutine of its own.
type applyRunner struct {
	*session
	applier applyEngine
	feed    inventoryFeed
	kinds   kindLookup
	status  *applyStatus
	// The next three are described in Config.
	journal     string
	acknowledge func(call string) error
	onLargeRun  func(retained bool) (done func())
	// impersonate returns a client with the rights of another user.
	impersonate func(*v1alpha1.Person) (dynamic.Interface, error)
}

// run carries out an apply, and records an interruption.
func (c *applyRunner) run(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan) {
	err := c.apply(ctx, run, a, p)
	if err != nil && ctx.Err() == nil {
		c.backoffs.failed(a.UID)
		c.metrics.failed(operationApply, err)
		c.log.Warn("apply interrupted; resuming", "namespace", a.Namespace, "apply", a.Name, "error", err)
		if err := c.status.interrupted(ctx, a, err); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			c.log.Warn("apply status update failed", "namespace", a.Namespace, "apply", a.Name, "error", err)
		}
	} else {
		c.backoffs.succeeded(a.UID)
	}
}

func (c *applyRunner) apply(ctx context.Context, run *applyRun, a *v1alpha1.Apply, p *v1alpha1.Plan) error {
	store := apistore.NewPlanStore(c.dynamic, p)
	salt, err := store.Salt(ctx)
	if err != nil {
		return err
	}
	if p.Spec.Rollback != "" {
		if ended, err := c.restoreSpecs(ctx, a, p); ended || err != nil {
			return err
		}
	}
	if err := waitCurrent(ctx, c.feed); err != nil {
		return err
	}
	req := applier.Options{
		Namespace: a.Namespace, Contents: planstore.ContentsOf(&p.Status), Digest: a.Spec.Digest, Salt: salt,
		Apply: a.Name, ApplyUID: string(a.UID), Server: c.journal, Mode: modeOf(&p.Spec),
		Parallelism: int(a.Spec.Parallelism), Canceled: run.canceled, OnStored: c.acknowledgeCall,
	}
	if req.Parallelism == 0 {
		req.Parallelism = defaultParallelism
	}
	var progress reporter[applier.Result]
	size := runSize{onLargeRun: c.onLargeRun, retained: true}
	defer size.finish()
	req.OnProgress = func(now applier.Result) {
		size.observe(now.Total)
		progress.set(now)
	}
	stop := progress.start(ctx, c.clock, c.status.progress(run, a))
	// Secrets are read when they are needed, with their values of that time.
	done, err := c.applier.Apply(placing.WithPlan(access.ForApply(ctx, p), p), req, store)
	stop()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // another server resumes it
	}
	return c.status.finish(ctx, run, a, p, done)
}

// acknowledgeCall lets the provider drop the answer of a call. After a failure it is kept for a while longer,
// which does no harm.
func (c *applyRunner) acknowledgeCall(call string) {
	if c.acknowledge == nil {
		return
	}
	if err := c.acknowledge(call); err != nil {
		c.log.Warn("acknowledge of a provider call failed; its answer is kept longer", "error", err)
	}
}
