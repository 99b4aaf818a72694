package infra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// Planning is what is to be planned.
type Planning struct {
	// Namespace of all resources that are planned. They may refer to others.
	Namespace string
	Mode      plan.Mode
	// Selector narrows it to objects with these labels, Targets to those, both with all they need. Nil is all.
	Selector labels.Selector
	Targets  []reference.Ref
	// Exclude leaves out these, with all that needs them.
	Exclude []reference.Ref
	// Replace makes these anew.
	Replace []reference.Ref
	// Refresh asks the providers what became of each resource.
	Refresh bool
	// Parallelism is how many resources are looked at at a time, besides what the providers allow. 64 if 0.
	Parallelism int
	// Written are taken for what is written, in the place of objects of the same name.
	Written []*Object
	// WriteBack says that what is Written is to be written before the plan is carried out: each change says what.
	WriteBack bool
	// Workloads are what is to become of objects in member clusters, sorted by address: they go into the plan as they are.
	Workloads []*plan.Change
	// Salt keys the digests of secrets: 32 random bytes, of this plan alone.
	Salt []byte
	// Ended tells whether an Apply of this UID has ended. As long as one has not, what it began to change is
	// not planned. Nil is: none has.
	Ended func(applyUID string) bool
	// Progress, if not nil, is told now and then how many are decided. It does not block.
	Progress func(done, total int)
	// Called, if not nil, is told of each call of a provider that has ended, how many that makes. It is called by many at
	// once, and does not block.
	Called func(calls int64)
}

// Planned is what came of it.
type Planned struct {
	Contents *plan.Contents
	// Problems are what kept resources from being planned, sorted by address; NotPlanned is of how many that is so, with
	// those that depend on them.
	Problems   []v1alpha1.Problem
	NotPlanned int
	// Warnings are what providers said that keeps nothing from happening, sorted by address.
	Warnings []v1alpha1.Problem
	// Drifted are resources that are not what their state says, in no order; Seen those that were read
	// and are.
	Drifted, Seen []reference.Ref
	// Read are the data sources that were read, for their status.
	Read []ReadData
	// Calls are those made of providers, and Took how long they took, one after another.
	Calls int
	Took  time.Duration
}

// ReadData is a data source that was read.
type ReadData struct {
	Object *Object
	Published
}

// Plan decides what would be done, and stores each change. It changes nothing.
//
// Problems of single resources, such as arguments that the provider refuses, do not make it
// fail: they are in what it returns, and what depends on such a resource is not planned.
func (e *Engine) Plan(ctx context.Context, what Planning, store PlanStore) (*Planned, error) {
	if len(what.Salt) < 32 {
		return nil, errors.New("a plan needs a salt of 32 random bytes: without, it would give away its secrets to whoever tries")
	}
	r := &run{Engine: e, what: what}
	if err := r.look(); err != nil {
		return nil, err
	}
	if err := r.narrow(); err != nil {
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
		return nil, fmt.Errorf("the plan's changes cannot be stored: %w", storing)
	case err != nil:
		return nil, err
	}
	r.remember()
	return r.planned(contents), nil
}

// planned is what came of it, in an order that does not depend on which was decided first.
func (r *run) planned(contents *plan.Contents) *Planned {
	slices.SortFunc(r.problems, compareProblems)
	slices.SortFunc(r.read, func(a, b ReadData) int { return compareRefs(a.Object.Ref, b.Object.Ref) })
	return &Planned{
		Contents: contents, Problems: r.problems, NotPlanned: r.notPlanned, Warnings: r.warnings.list(),
		Drifted: r.drifted, Seen: r.seen, Read: r.read,
		Calls: int(r.calls.Load()), Took: time.Duration(r.took.Load()),
	}
}
