// Package applier applies approved plans. It orders the changes, has providers carry them out, and
// records each step in the state that it changes, so that a crash loses and repeats nothing.
//
// It changes the world only through its interfaces: providers, infra.StateStore,
// infra.ObjectWriter and infra.Workloads.
package applier

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// Applier applies approved plans. All fields except Log must be set; Workloads may be nil if no plan
// has any. It is safe for concurrent use.
type Applier struct {
	Inventory *inventory.Inventory
	Evaluator evaluate.Evaluator
	Providers infra.Providers
	States    infra.StateStore
	Objects   infra.ObjectWriter
	Workloads infra.Workloads
	Clock     clock.PassiveClock
	Log       *slog.Logger
}

// Options selects the approved plan that Apply carries out, and how.
type Options struct {
	Namespace string
	// Contents of the plan. They must match Digest, which was approved.
	Contents *planstore.Contents
	Digest   string
	Salt     []byte
	// Mode of the plan. Only with change.Normal are no-op resources recorded as settled, so that the
	// next plan need not ask their providers.
	Mode change.Mode
	// Apply and ApplyUID identify the Apply in the journal. Server identifies this server across
	// restarts: only it can know the outcome of calls that it had started.
	Apply, ApplyUID, Server string
	// Parallelism is the maximum number of concurrent changes. 0 means 10.
	Parallelism int
	// Canceled, once closed, prevents further changes from starting.
	Canceled <-chan struct{}
	// OnProgress, if not nil, is called from time to time. It must not block.
	OnProgress func(Result)
	// OnStored, if not nil, is called with the name of each provider call whose outcome is stored,
	// so that its answer will not be requested again. It is called concurrently.
	OnStored func(call string)
}

// Result is the result of Apply so far.
type Result struct {
	// Total is the number of changes to carry out, including no-ops that have to be recorded.
	Total int64
	// Succeeded, Failed, Refused and Blocked are defined as in v1alpha1.ApplyStatus. Canceled
	// counts changes that were not started.
	Succeeded, Failed, Refused, Blocked, Canceled int64
	// Summary counts completed changes by action.
	Summary v1alpha1.PlanSummary
	// Problems are the reasons for failed and refused changes, sorted by address at the end.
	Problems []v1alpha1.Problem
	// Warnings are provider warnings, sorted by address.
	Warnings []v1alpha1.Problem
	// Running are at most ten changes in progress, longest first.
	Running []change.Address
}

// Apply carries out an approved plan. Calling it again for the same Apply, also after a crash,
// continues where it stopped; completed steps are not repeated.
//
// Problems of single changes are in the result. An error means that the Apply could not go on and
// must be called again; the result shows how far it came.
//
// When ctx ends, Apply returns as soon as the journal is up to date. Running provider calls are not
// aborted.
func (a *Applier) Apply(ctx context.Context, opts Options, store planstore.Store) (*Result, error) {
	changes, err := a.approved(ctx, opts, store)
	if err != nil {
		return nil, err
	}
	steps, err := a.steps(opts, changes)
	if err != nil {
		return nil, err
	}
	return newRun(a, opts, steps).walk(ctx)
}

func (a *Applier) log() *slog.Logger {
	if a.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return a.Log
}

// after returns a timer channel of the clock, if it has timers.
func (a *Applier) after(d time.Duration) <-chan time.Time {
	if c, can := a.Clock.(interface {
		After(time.Duration) <-chan time.Time
	}); can {
		return c.After(d)
	}
	return time.After(d)
}
