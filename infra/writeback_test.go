package infra

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// changes are those of a plan that do something, by name.
func (p *approvedPlan) changes(t *testing.T) map[string]*plan.Change {
	t.Helper()
	out := map[string]*plan.Change{}
	for n := range p.planned.Contents.Chunks {
		pieces, err := p.store.Shown(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		err = p.planned.Contents.Chunks[n].Read(pieces, true, nil, func(c *plan.Change) bool {
			if c.Action != plan.NoOp || c.Writes != nil {
				out[c.Address.Name] = c
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func sameText(a json.RawMessage, b string) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal([]byte(b), &other) == nil && fmt.Sprint(one) == fmt.Sprint(other)
}

// TestWriteBack: a change says what was carried out before it; what is taken for written is carried out once it has been written, and
// refused as long as it has not, or something else was.
func TestWriteBack(t *testing.T) {
	i := newIsland(t)
	first := map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false), "d": specOf("d", "one", "a", false)}
	i.write(first)
	i.apply(t, i.plan(t, "one", Planning{}))
	if got := i.states[thing("a")].Spec.Written; string(got) != first["a"] {
		t.Errorf("the state says that %s was carried out", got)
	}
	i.write(map[string]string{"a": specOf("a", "two", "a", false), "c": specOf("c", "two", "a", false), "d": first["d"]})
	second := i.plan(t, "two", Planning{})
	said := second.changes(t)
	if !sameText(said["a"].Was, first["a"]) || !sameText(said["b"].Was, first["b"]) || said["c"].Was != nil || said["d"] != nil {
		t.Errorf("the changes say %s, %s, %s", said["a"].Was, said["b"].Was, said["c"].Was)
	}
	i.apply(t, second)
	if got := string(i.states[thing("a")].Spec.Written); got != specOf("a", "two", "a", false) {
		t.Errorf("the state says that %s was carried out", got)
	}
	anew := written(thing("b"), 1, first["b"])
	anew.UID = ""
	gone := *i.objects[thing("c")]
	gone.Deleting, gone.Generation = true, gone.Generation+1
	again := *i.objects[thing("a")]
	again.Spec, again.Generation = []byte(first["a"]), again.Generation+1
	back := i.plan(t, "back", Planning{
		Written: []*Object{&again, anew, &gone}, WriteBack: true, Targets: []reference.Ref{thing("a"), thing("b"), thing("c")},
	})
	said = back.changes(t)
	if !sameText(said["a"].Writes, first["a"]) || !sameText(said["b"].Writes, first["b"]) || string(said["c"].Writes) != "null" {
		t.Fatalf("the changes write %s, %s, %s", said["a"].Writes, said["b"].Writes, said["c"].Writes)
	}
	if uid, generation, there, err := WrittenFrom(said["a"]); err != nil || !there || uid != "uid-a" || generation != again.Generation-1 {
		t.Errorf("it is written from %s at %d: %v", uid, generation, err)
	}
	if _, _, there, err := WrittenFrom(said["b"]); err != nil || there {
		t.Errorf("there is an object to write over: %v", err)
	}

	if got := i.apply(t, back); got.Refused != 3 || got.Succeeded != 0 {
		t.Errorf("without having been written: %+v", got)
	}
	i.objects[thing("a")], i.objects[thing("c")] = &again, &gone
	i.objects[thing("b")] = written(thing("b"), 2, first["b"])
	back.uid = "somebody else"
	if got := i.apply(t, back); got.Refused != 1 || got.Succeeded != 2 || got.Problems[0].Address != "Thing.demo.providers.atoll.dev/b" {
		t.Errorf("with b written by somebody else, too: %+v", got)
	}
	i.objects[thing("b")] = written(thing("b"), 1, first["b"])
	rest := i.plan(t, "rest", Planning{})
	i.apply(t, rest)
	if got := slices.Sorted(maps.Keys(rest.changes(t))); !slices.Equal(got, []string{"b"}) {
		t.Errorf("what is left to do: %v", got)
	}
	for name, spec := range first {
		if got := i.states[thing(name)]; got == nil || string(got.Spec.Written) != spec {
			t.Errorf("%s is not as it was", name)
		}
	}
	if i.states[thing("c")] != nil || i.objects[thing("c")] != nil {
		t.Error("what came later is still there")
	}
}

// TestUnapplied: what was written and not carried out is known, with what was.
func TestUnapplied(t *testing.T) {
	i := newIsland(t)
	first := map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false)}
	i.write(first)
	i.apply(t, i.plan(t, "one", Planning{}))
	i.write(map[string]string{"a": specOf("a", "two", "a", false), "b": first["b"], "c": first["b"]})
	s, _ := i.server()
	got := s.world.Unapplied(testNamespace)
	if len(got) != 1 || string(got[thing("a")]) != first["a"] {
		t.Errorf("not carried out: %v", got)
	}
	// What is the same is held once.
	object, state := s.world.Object(thing("b")), s.world.State(thing("b"))
	if &object.Spec[0] != &state.Spec.Written[0] {
		t.Error("the spec of b is held twice")
	}
}
