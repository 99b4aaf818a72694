package infra

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// TestInventoryDropsUnusedNodes checks nodes and reference counts after random changes.
func TestInventoryDropsUnusedNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := newFakeEnv()
	m := newModel(t, s)
	w := s.engine(t, nil).Inventory
	for step := range 3000 {
		m.version++
		ref := thingRef(fmt.Sprint("t", random.IntN(12)))
		switch random.IntN(5) {
		case 0:
			delete(m.objects, ref)
			w.RemoveObject(ref)
		case 1:
			delete(m.states, ref)
			w.RemoveState(ref)
		case 2:
			m.states[ref] = &State{Ref: ref, UID: "u", ResourceVersion: fmt.Sprint(m.version)}
			w.SetState(m.states[ref])
		default:
			m.objects[ref] = newObject(ref, int64(m.version), m.spec(random, ref, 12))
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
		m.consistent(w)
	}
}

func (m *model) consistent(w *Inventory) {
	m.t.Helper()
	users := map[reference.Ref]int32{}
	needed := map[reference.Ref]bool{}
	for ref, o := range m.objects {
		needed[ref] = true
		if got := w.Object(ref); got == nil || got.ResourceVersion != o.ResourceVersion {
			m.t.Fatalf("%s is %+v", ref, got)
		}
		for _, used := range m.uses(ref) {
			users[used]++
			needed[used] = true
		}
	}
	for ref, s := range m.states {
		needed[ref] = true
		if got := w.State(ref); got == nil || got.ResourceVersion != s.ResourceVersion {
			m.t.Fatalf("the state of %s is %+v", ref, got)
		}
	}
	if len(w.index) != len(needed) || len(w.nodes) != len(needed)+len(w.freeNodes) {
		m.t.Fatalf("%d references and %d nodes, %d of them free, want %d references", len(w.index), len(w.nodes), len(w.freeNodes), len(needed))
	}
	for ref, at := range w.index {
		if n := &w.nodes[at]; n.ref != ref || n.userCount != users[ref] {
			m.t.Fatalf("node of %s has %s and %d users, want %d", ref, n.ref, n.userCount, users[ref])
		}
	}
}

// TestIrrelevantChanges: new labels or status do not matter for a plan.
func TestIrrelevantChanges(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	p.want(PlanOptions{})
	before := p.engine.Inventory.clock
	o := *p.objects[thingRef("a")]
	o.Labels, o.ResourceVersion = map[string]string{"a": "b"}, "another"
	p.engine.Inventory.SetObject(&o)
	if now := p.engine.Inventory.clock; now != before {
		t.Errorf("the clock went from %d to %d", before, now)
	}
	if got := p.engine.Inventory.Object(o.Ref); got.ResourceVersion != "another" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
}

// TestInventoryDuringPlans runs plans of the same namespace while the Inventory changes. A later
// plan equals that of a new Inventory.
func TestInventoryDuringPlans(t *testing.T) {
	s := newFakeEnv()
	s.noLog = true
	m := newModel(t, s)
	e := s.engine(t, nil)
	random := rand.New(rand.NewPCG(3, 4))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range 15 {
				opts := PlanOptions{Namespace: testNamespace, Mode: plan.Normal, Salt: testSalt}
				if _, err := e.Plan(t.Context(), opts, newFakePlanStore()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		m.version++
		ref := thingRef(fmt.Sprint("t", random.IntN(20)))
		m.objects[ref] = newObject(ref, int64(m.version), m.spec(random, ref, 20))
		e.Inventory.SetObject(m.objects[ref])
		e.Inventory.SetObject(newObject(imageRef(fmt.Sprint("d", random.IntN(3))), int64(m.version), m.spec(random, imageRef("d"), 20)))
		if random.IntN(20) == 0 {
			e.Inventory.KindsChanged()
		}
		if random.IntN(20) == 0 {
			e.Inventory.Compact()
		}
	}
	all.Wait()
	for i := range 3 {
		ref := imageRef(fmt.Sprint("d", i))
		if o := e.Inventory.Object(ref); o != nil {
			m.objects[ref] = o
		}
	}
	got, store := mustPlan(t, e, PlanOptions{})
	fresh := s.engine(t, nil)
	m.syncInventory(fresh.Inventory, nil, nil)
	want, other := mustPlan(t, fresh, PlanOptions{})
	if a, b := actions(t, got, store), actions(t, want, other); a != b {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}

// TestStateNamesAreUnique checks that a state has the same name with and without its object, and
// that similar type names of a provider give different names.
func TestStateNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, n := range schema.Names([]string{"aws_policy", "aws_data_ami", "aws_endpoint", "aws_endpoints", "awsbeta_policy", "a_b_1", "a_b1"}, []string{"aws_ami", "aws_subnet", "aws_subnets"}) {
		kind := &ServedKind{Kind: schema.Kind{Name: n, Group: schema.Group("aws")}, Provider: "aws"}
		left := &State{Spec: v1alpha1.ResourceStateSpec{Object: v1alpha1.StateOwner{Group: kind.Group, Kind: n.Kind, Name: "main"}}}
		name := stateName(left)
		if of := stateNameOf(kind, "main"); of != name {
			t.Errorf("the state of a %s has the name %s without its object, and %s with it", n.Type, of, name)
		}
		if other := seen[name]; other != "" {
			t.Errorf("the states of %s and %s are both called %s", other, n.Type, name)
		}
		seen[name] = n.Type
	}
}
