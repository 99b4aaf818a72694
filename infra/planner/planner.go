// Package planner computes plans: it compares the desired objects of a namespace with the prior
// states and decides what to change.
//
// It works on a snapshot of the inventory, asks providers without changing anything, and writes
// only to a planstore.Store and to the memos of the inventory.
package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/problems"
)

// Planner computes plans. All fields must be set. It is safe for concurrent use.
type Planner struct {
	Inventory *inventory.Inventory
	Evaluator evaluate.Evaluator
	Providers infra.Providers
	Clock     clock.PassiveClock
}

// Options selects what Plan plans, and how.
type Options struct {
	// Namespace of all planned resources. They may refer to other namespaces.
	Namespace string
	Mode      change.Mode
	// Selector limits the plan to objects with these labels, Targets to the resources listed, both
	// with all their dependencies. Nil means everything.
	Selector labels.Selector
	Targets  []expr.Ref
	// Exclude leaves out these resources and all their dependents.
	Exclude []expr.Ref
	// Replace forces the replacement of these resources.
	Replace []expr.Ref
	// Refresh reads every resource from its provider.
	Refresh bool
	// Parallelism is the maximum number of resources planned concurrently, within the limits of the
	// providers. 0 means 64.
	Parallelism int
	// Overrides are desired objects that replace those of the same name in the Inventory.
	Overrides []*infra.Object
	// WriteBack means that the Overrides are to be written to the API before the plan is applied.
	// Each change says what to write.
	WriteBack bool
	// Workloads are changes of objects in member clusters, sorted by address. They are added to the
	// plan as they are.
	Workloads []*change.Change
	// Salt keys the digests of secrets: 32 random bytes that belong to this plan alone.
	Salt []byte
	// ApplyEnded reports whether the Apply with this UID has ended. Until then, resources that it
	// started to change are not planned. Nil means that none has ended.
	ApplyEnded func(applyUID string) bool
	// OnProgress, if not nil, is called from time to time with the number of planned resources. It
	// must not block.
	OnProgress func(done, total int)
	// OnProviderCall, if not nil, is called with the number of provider calls after each of them.
	// It is called concurrently and must not block.
	OnProviderCall func(calls int64)
}

// Result is the result of Plan.
type Result struct {
	Contents *planstore.Contents
	// Problems are the reasons why resources could not be planned, sorted by address. NotPlanned
	// counts these resources and their dependents.
	Problems   []v1alpha1.Problem
	NotPlanned int
	// Warnings are provider warnings, sorted by address.
	Warnings []v1alpha1.Problem
	// Drifted are the resources that were read and differ from their state. InSync are those that
	// were read and match it. Both are unordered.
	Drifted, InSync []expr.Ref
	// DataReads are the data sources that were read, for their status.
	DataReads []DataSourceRead
	// ProviderCalls is the number of provider calls, and ProviderTime the sum of their durations.
	ProviderCalls int
	ProviderTime  time.Duration
}

// DataSourceRead is a data source that was read, with its new status.
type DataSourceRead struct {
	Object *infra.Object
	infra.ObjectStatus
}

// Plan computes the changes and stores each of them. It does not change any resource.
//
// A problem of a single resource, such as an argument that the provider rejects, is not an error of
// Plan. It is in the result, and the dependents of that resource are not planned.
func (p *Planner) Plan(ctx context.Context, opts Options, store planstore.Store) (*Result, error) {
	if len(opts.Salt) < 32 {
		return nil, errors.New("a plan needs a salt of 32 random bytes, or its digests would reveal secrets")
	}
	r := &run{Planner: p, opts: opts}
	if err := r.snapshot(); err != nil {
		return nil, err
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	walking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	emitting := r.emit(walking, stop, store)
	err := r.walk(walking, emitting)
	contents, storing := emitting.finish()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case storing != nil:
		return nil, fmt.Errorf("cannot store the changes of the plan: %w", storing)
	case err != nil:
		return nil, err
	}
	r.storeMemos()
	return r.result(contents), nil
}

// result returns the result in an order that does not depend on scheduling.
func (r *run) result(contents *planstore.Contents) *Result {
	slices.SortFunc(r.problems, problems.Compare)
	slices.SortFunc(r.dataReads, func(a, b DataSourceRead) int { return a.Object.Ref.Compare(b.Object.Ref) })
	return &Result{
		Contents: contents, Problems: r.problems, NotPlanned: r.notPlanned, Warnings: r.warnings.List(),
		Drifted: r.drifted, InSync: r.inSync, DataReads: r.dataReads,
		ProviderCalls: int(r.calls.Load()), ProviderTime: time.Duration(r.providerTime.Load()),
	}
}
