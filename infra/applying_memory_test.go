package infra

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/infra/reference"
)

// rewrite writes specs, and tells a World of them.
func (i *island) rewrite(w *World, specs map[string]string) {
	before := make([]reference.Ref, 0, len(i.objects))
	for ref := range i.objects {
		before = append(before, ref)
	}
	i.write(specs)
	for _, ref := range before {
		if i.objects[ref] == nil {
			w.RemoveObject(ref)
		}
	}
	for _, o := range i.objects {
		w.SetObject(o)
	}
}

// remembered counts the resources in a World of which a plan need not evaluate anything.
func remembered(w *World) (remembered, resources int) {
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.object == nil || n.state == nil || n.ref.Kind != reference.Resource {
			continue
		}
		resources++
		if n.memo.at >= n.moved && n.memo.at > 0 {
			remembered++
		}
	}
	return remembered, resources
}

// TestApplyIsRemembered: what an Apply made is not evaluated once more by the plan after it.
func TestApplyIsRemembered(t *testing.T) {
	i := newIsland(t)
	s, e := i.server()
	i.rewrite(s.world, map[string]string{
		"t0": specOf("t0", "one", "a", false),
		"t1": specOf("t1", "one", "a", false, "t0"),
		"t2": specOf("t2", "one", "a", false, "t0", "t1"),
		"t3": specOf("t3", "one", "a", false, "data-t0"), "data-t0": `{"filter":"${demo_thing[\"t0\"].id}"}`,
	})
	carry := func() {
		t.Helper()
		planned, store := planOf(t, e, Planning{})
		p := &approvedPlan{planned, store, fmt.Sprint("apply", i.revision)}
		if out, err := e.Apply(t.Context(), p.applying(), store); err != nil || len(out.Problems) > 0 || out.Succeeded != out.Total {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	expect := func(of string, want int) {
		t.Helper()
		if got, all := remembered(s.world); got != want || all != 4 {
			t.Fatalf("%s: of %d of %d resources it is remembered that there is nothing to do, and not of %d", of, got, all, want)
		}
		planned, store := planOf(t, e, Planning{})
		if left := actions(t, planned, store); left != "" {
			t.Fatalf("%s, and there is something to do: %s", of, left)
		}
	}
	carry()
	// What a data source says has to be read first.
	expect("after an apply", 3)
	expect("after a plan", 4)

	// t1 gets another value, which t2 looks at.
	i.rewrite(s.world, map[string]string{
		"t0": specOf("t0", "one", "a", false),
		"t1": specOf("t1", "two", "a", false, "t0"),
		"t2": specOf("t2", "one", "a", false, "t0", "t1"),
		"t3": specOf("t3", "one", "a", false, "data-t0"), "data-t0": `{"filter":"${demo_thing[\"t0\"].id}"}`,
	})
	carry()
	// t2 was compared with what t1 was about to be.
	expect("after an update", 3)
	expect("after another plan", 4)
}

// TestMemoryOfApplies: plans of a World that remembers what it applied come to the same as those of one that remembers nothing,
// whatever is written and happens in between.
func TestMemoryOfApplies(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 3))
		i := newIsland(t)
		s, e := i.server()
		n := 3 + random.IntN(6)
		var specs map[string]string
		for round := range 8 {
			if specs == nil || random.IntN(3) > 0 {
				specs = randomSpecs(random, n, specs)
				i.rewrite(s.world, specs)
			}
			what := Planning{Refresh: random.IntN(5) == 0, Ended: func(string) bool { return true }}
			if what.Refresh {
				i.cloud.disturb(random)
			}
			planned, store := planOf(t, e, what)
			_, fresh := i.server()
			other, otherStore := planOf(t, fresh, what)
			if a, b := actions(t, planned, store), actions(t, other, otherStore); a != b || !slices.Equal(planned.Problems, other.Problems) {
				t.Fatalf("seed %d, round %d: with what is remembered\n%s\n%+v\nand without\n%s\n%+v", seed, round, a, planned.Problems, b, other.Problems)
			}
			if random.IntN(4) == 0 {
				continue
			}
			p := &approvedPlan{planned, store, fmt.Sprint(seed, "-", round)}
			if random.IntN(4) == 0 {
				s.faults = func(call int) (fails, done bool) { return random.IntN(12) == 0, random.IntN(2) == 0 }
			}
			if _, err := e.Apply(t.Context(), p.applying(), store); err != nil {
				t.Logf("seed %d, round %d: %v", seed, round, err)
			}
			s.faults = nil
			for _, o := range i.objects { // which are held by now
				s.world.SetObject(o)
			}
			if random.IntN(2) == 0 {
				s.world.Compact()
			}
		}
	}
}
