package inventory

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/expr"
)

// TestInventoryDropsUnusedNodes checks nodes and reference counts after random changes.
func TestInventoryDropsUnusedNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	w := newTestInventory(t)
	m := &fakeCluster{objects: map[expr.Ref]*infra.Object{}, states: map[expr.Ref]*infra.State{}}
	for step := range 3000 {
		m.version++
		ref := enginetest.ThingRef(fmt.Sprint("t", random.IntN(12)))
		switch random.IntN(5) {
		case 0:
			delete(m.objects, ref)
			w.RemoveObject(ref)
		case 1:
			delete(m.states, ref)
			w.RemoveState(ref)
		case 2:
			m.states[ref] = &infra.State{Ref: ref, UID: "u", ResourceVersion: fmt.Sprint(m.version)}
			w.SetState(m.states[ref])
		default:
			m.objects[ref] = enginetest.NewObject(ref, int64(m.version), enginetest.RandomSpec(random, ref, 12))
			w.SetObject(m.objects[ref])
		}
		if step > 2900 {
			for ref := range m.objects {
				delete(m.objects, ref)
				w.RemoveObject(ref)
				break
			}
			for ref := range m.states {
				delete(m.states, ref)
				w.RemoveState(ref)
				break
			}
		}
		m.consistent(t, w)
	}
}

// fakeCluster holds what an Inventory was told of.
type fakeCluster struct {
	objects map[expr.Ref]*infra.Object
	states  map[expr.Ref]*infra.State
	version int
}

func newTestInventory(t *testing.T) *Inventory {
	t.Helper()
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	return New(language, enginetest.NewEnv())
}

// consistent checks the index, the nodes and their reference counts.
func (m *fakeCluster) consistent(t *testing.T, w *Inventory) {
	t.Helper()
	users := map[expr.Ref]int32{}
	needed := map[expr.Ref]bool{}
	for ref, o := range m.objects {
		needed[ref] = true
		if got := w.Object(ref); got == nil || got.ResourceVersion != o.ResourceVersion {
			t.Fatalf("%s is %+v", ref, got)
		}
		_, uses := parseSpec(w.language, o)
		for _, used := range uses {
			users[used]++
			needed[used] = true
		}
	}
	for ref, s := range m.states {
		needed[ref] = true
		if got := w.State(ref); got == nil || got.ResourceVersion != s.ResourceVersion {
			t.Fatalf("the state of %s is %+v", ref, got)
		}
	}
	if len(w.index) != len(needed) || len(w.nodes) != len(needed)+len(w.freeNodes) {
		t.Fatalf("%d references and %d nodes, %d of them free, want %d references", len(w.index), len(w.nodes), len(w.freeNodes), len(needed))
	}
	for ref, at := range w.index {
		if n := &w.nodes[at]; n.ref != ref || n.userCount != users[ref] {
			t.Fatalf("node of %s has %s and %d users, want %d", ref, n.ref, n.userCount, users[ref])
		}
	}
}

// TestIrrelevantChanges: new labels or status do not matter for a plan.
func TestIrrelevantChanges(t *testing.T) {
	w := newTestInventory(t)
	o := *enginetest.NewObject(enginetest.ThingRef("a"), 1, `{"content":"one"}`)
	w.SetObject(&o)
	before := w.clock
	o.Labels, o.ResourceVersion = map[string]string{"a": "b"}, "another"
	w.SetObject(&o)
	if now := w.clock; now != before {
		t.Errorf("the clock went from %d to %d", before, now)
	}
	if got := w.Object(o.Ref); got.ResourceVersion != "another" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
}
