package infra

import (
	"context"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
)

// Applying is what is to be carried out.
type Applying struct {
	Namespace string
	// Contents of the plan, and the digest that was approved, which it has to have.
	Contents *plan.Contents
	Digest   string
	Salt     []byte
	// Mode that the plan was made in. Only if it is said to be plan.Normal, what needed no change is noted as
	// settled, so that the next plan need not ask about it.
	Mode plan.Mode
	// Apply and ApplyUID name it in the journal; Server who carries it out, by a name that it keeps when it
	// is started again: what became of calls that were under way is known to that server alone.
	Apply, ApplyUID, Server string
	// Parallelism is how many changes are carried out at a time. 10 if 0.
	Parallelism int
	// Canceled, once closed, has nothing else begin.
	Canceled <-chan struct{}
	// Progress, if not nil, is told now and then. It does not block.
	Progress func(Applied)
	// Stored, if not nil, is told of each call of a provider, by its name, of which the outcome is stored: nobody
	// will ask for the answer again. It is called by many at once.
	Stored func(call string)
}

// Applied is what came of it, so far.
type Applied struct {
	// Total is of how many changes something is to be done, of those that change nothing those with
	// something to be noted.
	Total int64
	// Succeeded, Failed, Refused and Blocked are what v1alpha1.ApplyStatus says they are; Canceled is what was not begun.
	Succeeded, Failed, Refused, Blocked, Canceled int64
	// Done is what it did.
	Done v1alpha1.PlanSummary
	// Problems are what failed or was refused, sorted by address at the end.
	Problems []v1alpha1.Problem
	// Warnings are what providers said that kept nothing from happening, sorted by address.
	Warnings []v1alpha1.Problem
	// Running are those that are being changed now, longest first; at most ten.
	Running []plan.Address
}

// Apply carries out what was approved. It can be called again for the same apply, after a crash too, and goes
// on where it was: what is done is not done again.
//
// What goes wrong with single changes is in what it returns. An error is of something that kept it
// from going on, and it has to be called again; what it returns beside it is how far it came.
//
// The end of ctx has it return as soon as the journal says what is known: providers are not
// broken off by it.
func (e *Engine) Apply(ctx context.Context, what Applying, store PlanStore) (*Applied, error) {
	changes, err := e.approved(ctx, what, store)
	if err != nil {
		return nil, err
	}
	steps, err := e.steps(what, changes)
	if err != nil {
		return nil, err
	}
	return newCarrier(e, what, steps).walk(ctx)
}
