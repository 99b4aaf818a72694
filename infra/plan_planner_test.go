package infra

import (
	"testing"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
)

// newPlanner returns a planner with an Inventory; nil means a new one.
func newPlanner(t testing.TB, s *fakeEnv, inv *Inventory) *Planner {
	t.Helper()
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	if inv == nil {
		inv = NewInventory(language, s)
	}
	return &Planner{Inventory: inv, Evaluator: Evaluator{Language: language, Values: s}, Providers: s, Clock: clock.RealClock{}}
}

func mustPlan(t testing.TB, e *Planner, opts PlanOptions) (*PlanResult, *fakePlanStore) {
	t.Helper()
	if opts.Namespace == "" {
		opts.Namespace = testNamespace
	}
	if opts.Mode == "" {
		opts.Mode = change.Normal
	}
	opts.Salt = testSalt()
	store := newFakePlanStore()
	planned, err := e.Plan(t.Context(), opts, store)
	if err != nil {
		t.Fatal(err)
	}
	return planned, store
}

func actions(t testing.TB, planned *PlanResult, store *fakePlanStore) string {
	t.Helper()
	return store.actions(t, planned.Contents, planned.Problems)
}
