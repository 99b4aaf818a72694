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

// Whatever comes and goes, the World knows what is there and who refers to it, and keeps nothing else.
func TestWorldForgetsWhatNobodyNeeds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := newStand()
	m := newModel(t, s)
	w := s.engine(t, nil).World
	for step := range 3000 {
		m.version++
		ref := thing(fmt.Sprint("t", random.IntN(12)))
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
			m.objects[ref] = written(ref, int64(m.version), m.spec(random, ref, 12))
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

func (m *model) consistent(w *World) {
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
	if len(w.numbers) != len(needed) || len(w.nodes) != len(needed)+len(w.free) {
		m.t.Fatalf("it knows %d, in %d places of which %d are free, and needs %d", len(w.numbers), len(w.nodes), len(w.free), len(needed))
	}
	for ref, at := range w.numbers {
		if n := &w.nodes[at]; n.ref != ref || n.users != users[ref] {
			m.t.Fatalf("%s is %s, and %d refer to it instead of %d", ref, n.ref, n.users, users[ref])
		}
	}
}

// A new label or status is no change for a plan: nothing is evaluated again.
func TestWhatAPlanDoesNotSee(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	p.want(Planning{})
	before := p.engine.World.clock
	o := *p.objects[thing("a")]
	o.Labels, o.ResourceVersion = map[string]string{"a": "b"}, "another"
	p.engine.World.SetObject(&o)
	if now := p.engine.World.clock; now != before {
		t.Errorf("the clock went from %d to %d", before, now)
	}
	if got := p.engine.World.Object(o.Ref); got.ResourceVersion != "another" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
}

// Plans of several namespaces run while the World changes; afterwards a plan says what a new World's does.
func TestWorldWhilePlansRun(t *testing.T) {
	s := newStand()
	s.quiet = true
	m := newModel(t, s)
	e := s.engine(t, nil)
	random := rand.New(rand.NewPCG(3, 4))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range 15 {
				what := Planning{Namespace: testNamespace, Mode: plan.Normal, Salt: testSalt}
				if _, err := e.Plan(t.Context(), what, newChunks()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		m.version++
		ref := thing(fmt.Sprint("t", random.IntN(20)))
		m.objects[ref] = written(ref, int64(m.version), m.spec(random, ref, 20))
		e.World.SetObject(m.objects[ref])
		e.World.SetObject(written(image(fmt.Sprint("d", random.IntN(3))), int64(m.version), m.spec(random, image("d"), 20)))
		if random.IntN(20) == 0 {
			e.World.KindsChanged()
		}
		if random.IntN(20) == 0 {
			e.World.Compact()
		}
	}
	all.Wait()
	for i := range 3 {
		ref := image(fmt.Sprint("d", i))
		if o := e.World.Object(ref); o != nil {
			m.objects[ref] = o
		}
	}
	got, store := planOf(t, e, Planning{})
	fresh := s.engine(t, nil)
	m.tell(fresh.World, nil, nil)
	want, other := planOf(t, fresh, Planning{})
	if a, b := actions(t, got, store), actions(t, want, other); a != b {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}

// What is left of a resource has the name that its object gave it, also where the names of a provider's types meet.
func TestStatesOfTypesThatMeet(t *testing.T) {
	seen := map[string]string{}
	for _, n := range schema.Names([]string{"aws_policy", "aws_data_ami", "aws_endpoint", "aws_endpoints", "awsbeta_policy", "a_b_1", "a_b1"}, []string{"aws_ami", "aws_subnet", "aws_subnets"}) {
		kind := &Served{Kind: schema.Kind{Name: n, Group: schema.Group("aws")}, Provider: "aws"}
		left := &State{Spec: v1alpha1.ResourceStateSpec{Object: v1alpha1.StateOwner{Group: kind.Group, Kind: n.Kind, Name: "main"}}}
		name := stateName(left)
		if of := stateNameOf(kind, "main"); of != name {
			t.Errorf("the state of a %s is called %s, and looked for as %s", n.Type, of, name)
		}
		if other := seen[name]; other != "" {
			t.Errorf("the states of %s and %s are both called %s", other, n.Type, name)
		}
		seen[name] = n.Type
	}
}
