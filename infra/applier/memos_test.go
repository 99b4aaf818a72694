package applier

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/planner"
)

// writeAndSync writes specs and updates an Inventory.
func (i *datastore) writeAndSync(w *inventory.Inventory, specs map[string]string) {
	before := make([]expr.Ref, 0, len(i.objects))
	for ref := range i.objects {
		before = append(before, ref)
	}
	i.writeSpecs(specs)
	for _, ref := range before {
		if i.objects[ref] == nil {
			w.RemoveObject(ref)
		}
	}
	for _, o := range i.objects {
		w.SetObject(o)
	}
}

// remembered counts the resources of an Inventory that a plan need not evaluate.
func remembered(t *testing.T, w *inventory.Inventory) (remembered, resources int) {
	t.Helper()
	taken, err := w.Snapshot(inventory.SnapshotOptions{Namespace: enginetest.Namespace, Select: func(r *inventory.Resource) bool {
		return r.Object != nil && r.State != nil && !r.IsData()
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range taken.Selected {
		if taken.Resources[i].IsMemoValid() {
			remembered++
		}
	}
	return remembered, taken.Selected
}

// TestApplyLeavesMemos checks that the plan after an Apply does not evaluate what it has applied.
func TestApplyLeavesMemos(t *testing.T) {
	i := newDatastore(t)
	s, e := i.server()
	i.writeAndSync(s.inventory, map[string]string{
		"t0": specOf("t0", "one", "a", false),
		"t1": specOf("t1", "one", "a", false, "t0"),
		"t2": specOf("t2", "one", "a", false, "t0", "t1"),
		"t3": specOf("t3", "one", "a", false, "data-t0"), "data-t0": `{"filter":"${demo_thing[\"t0\"].id}"}`,
	})
	planAndApply := func() {
		t.Helper()
		planned, store := e.mustPlan(t, planner.Options{})
		p := &approvedPlan{planned, store, fmt.Sprint("apply", i.revision), enginetest.Namespace}
		if out, err := e.Apply(t.Context(), p.applying(), store); err != nil || len(out.Problems) > 0 || out.Succeeded != out.Total {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	expect := func(of string, want int) {
		t.Helper()
		if got, all := remembered(t, s.inventory); got != want || all != 4 {
			t.Fatalf("%s: %d of %d resources have memos, want %d", of, got, all, want)
		}
		planned, store := e.mustPlan(t, planner.Options{})
		if left := store.Actions(t, planned.Contents, planned.Problems); left != "" {
			t.Fatalf("%s the plan has changes: %s", of, left)
		}
	}
	planAndApply()
	// A data source has to be read first.
	expect("after an apply", 3)
	expect("after a plan", 4)

	// t1 gets another value, which t2 refers to.
	i.writeAndSync(s.inventory, map[string]string{
		"t0": specOf("t0", "one", "a", false),
		"t1": specOf("t1", "two", "a", false, "t0"),
		"t2": specOf("t2", "one", "a", false, "t0", "t1"),
		"t3": specOf("t3", "one", "a", false, "data-t0"), "data-t0": `{"filter":"${demo_thing[\"t0\"].id}"}`,
	})
	planAndApply()
	// t2 was compared with the planned value of t1.
	expect("after an update", 3)
	expect("after another plan", 4)
}

// TestMemosAfterApplies compares plans with and without memos, after random edits, drift and
// failures.
func TestMemosAfterApplies(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 3))
		i := newDatastore(t)
		s, e := i.server()
		n := 3 + random.IntN(6)
		var specs map[string]string
		for round := range 8 {
			if specs == nil || random.IntN(3) > 0 {
				specs = randomSpecs(random, n, specs)
				i.writeAndSync(s.inventory, specs)
			}
			opts := planner.Options{Refresh: random.IntN(5) == 0, ApplyEnded: func(string) bool { return true }}
			if opts.Refresh {
				i.cloud.causeDrift(random)
			}
			planned, store := e.mustPlan(t, opts)
			_, fresh := i.server()
			other, otherStore := fresh.mustPlan(t, opts)
			if a, b := store.Actions(t, planned.Contents, planned.Problems), otherStore.Actions(t, other.Contents, other.Problems); a != b || !slices.Equal(planned.Problems, other.Problems) {
				t.Fatalf("seed %d, round %d: with memos\n%s\n%+v\nwithout\n%s\n%+v", seed, round, a, planned.Problems, b, other.Problems)
			}
			if random.IntN(4) == 0 {
				continue
			}
			p := &approvedPlan{planned, store, fmt.Sprint(seed, "-", round), enginetest.Namespace}
			if random.IntN(4) == 0 {
				s.faults = func(call int) (fails, done bool) { return random.IntN(12) == 0, random.IntN(2) == 0 }
			}
			if _, err := e.Apply(t.Context(), p.applying(), store); err != nil {
				t.Logf("seed %d, round %d: %v", seed, round, err)
			}
			s.faults = nil
			for _, o := range i.objects { // with their new finalizers
				s.inventory.SetObject(o)
			}
			if random.IntN(2) == 0 {
				s.inventory.Compact()
			}
		}
	}
}
