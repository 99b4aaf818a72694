package planner

import (
	"testing"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
)

// newPlanner returns a planner with an Inventory; nil means a new one.
func newPlanner(t testing.TB, s *enginetest.Env, inv *inventory.Inventory) *Planner {
	t.Helper()
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	if inv == nil {
		inv = inventory.New(language, s)
	}
	return &Planner{Inventory: inv, Evaluator: evaluate.Evaluator{Language: language, Values: s, Functions: s}, Providers: s, Clock: clock.RealClock{}}
}

func mustPlan(t testing.TB, e *Planner, opts Options) (*Result, *enginetest.PlanStore) {
	t.Helper()
	if opts.Namespace == "" {
		opts.Namespace = enginetest.Namespace
	}
	if opts.Mode == "" {
		opts.Mode = change.Normal
	}
	opts.Salt = enginetest.Salt()
	store := enginetest.NewPlanStore()
	planned, err := e.Plan(t.Context(), opts, store)
	if err != nil {
		t.Fatal(err)
	}
	return planned, store
}

func actions(t testing.TB, planned *Result, store *enginetest.PlanStore) string {
	t.Helper()
	return store.Actions(t, planned.Contents, planned.Problems)
}
