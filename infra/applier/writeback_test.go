package applier

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planner"
)

// changes returns the effective changes of a plan by name.
func (p *approvedPlan) changes(t *testing.T) map[string]*change.Change {
	t.Helper()
	out := map[string]*change.Change{}
	for n := range p.planned.Contents.Chunks {
		pieces, err := p.store.Shown(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		err = p.planned.Contents.Chunks[n].Read(pieces, true, nil, func(c *change.Change) bool {
			if c.Action != change.NoOp || c.RestoreSpec != nil {
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

// TestWriteBack: a change records the spec that was applied before it. An override is applied once
// it was written to the API, and refused if it was not, or if something else was.
func TestWriteBack(t *testing.T) {
	i := newDatastore(t)
	first := map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false), "d": specOf("d", "one", "a", false)}
	i.writeSpecs(first)
	i.apply(t, i.plan(t, "one", planner.Options{}))
	if got := i.states[enginetest.ThingRef("a")].Spec.Written; string(got) != first["a"] {
		t.Errorf("the state says that %s was carried out", got)
	}
	i.writeSpecs(map[string]string{"a": specOf("a", "two", "a", false), "c": specOf("c", "two", "a", false), "d": first["d"]})
	second := i.plan(t, "two", planner.Options{})
	changes := second.changes(t)
	if !sameText(changes["a"].PriorSpec, first["a"]) || !sameText(changes["b"].PriorSpec, first["b"]) || changes["c"].PriorSpec != nil || changes["d"] != nil {
		t.Errorf("the prior specs are %s, %s, %s", changes["a"].PriorSpec, changes["b"].PriorSpec, changes["c"].PriorSpec)
	}
	i.apply(t, second)
	if got := string(i.states[enginetest.ThingRef("a")].Spec.Written); got != specOf("a", "two", "a", false) {
		t.Errorf("the state says that %s was carried out", got)
	}
	created := enginetest.NewObject(enginetest.ThingRef("b"), 1, first["b"])
	created.UID = ""
	deleted := *i.objects[enginetest.ThingRef("c")]
	deleted.Deleting, deleted.Generation = true, deleted.Generation+1
	again := *i.objects[enginetest.ThingRef("a")]
	again.Spec, again.Generation = []byte(first["a"]), again.Generation+1
	back := i.plan(t, "back", planner.Options{
		Overrides: []*infra.Object{&again, created, &deleted}, WriteBack: true, Targets: []expr.Ref{enginetest.ThingRef("a"), enginetest.ThingRef("b"), enginetest.ThingRef("c")},
	})
	changes = back.changes(t)
	if !sameText(changes["a"].RestoreSpec, first["a"]) || !sameText(changes["b"].RestoreSpec, first["b"]) || string(changes["c"].RestoreSpec) != "null" {
		t.Fatalf("the specs to write are %s, %s, %s", changes["a"].RestoreSpec, changes["b"].RestoreSpec, changes["c"].RestoreSpec)
	}
	if uid, generation, exists, err := infra.ObjectPrecondition(changes["a"]); err != nil || !exists || uid != "uid-a" || generation != again.Generation-1 {
		t.Errorf("precondition %s at %d: %v", uid, generation, err)
	}
	if _, _, exists, err := infra.ObjectPrecondition(changes["b"]); err != nil || exists {
		t.Errorf("precondition of a missing object: %v", err)
	}

	if got := i.apply(t, back); got.Refused != 3 || got.Succeeded != 0 {
		t.Errorf("before the write: %+v", got)
	}
	i.objects[enginetest.ThingRef("a")], i.objects[enginetest.ThingRef("c")] = &again, &deleted
	i.objects[enginetest.ThingRef("b")] = enginetest.NewObject(enginetest.ThingRef("b"), 2, first["b"])
	back.uid = "another client"
	if got := i.apply(t, back); got.Refused != 1 || got.Succeeded != 2 || got.Problems[0].Address != "Thing.demo.providers.atoll.dev/b" {
		t.Errorf("with b changed by another client: %+v", got)
	}
	i.objects[enginetest.ThingRef("b")] = enginetest.NewObject(enginetest.ThingRef("b"), 1, first["b"])
	rest := i.plan(t, "rest", planner.Options{})
	i.apply(t, rest)
	if got := slices.Sorted(maps.Keys(rest.changes(t))); !slices.Equal(got, []string{"b"}) {
		t.Errorf("remaining changes: %v", got)
	}
	for name, spec := range first {
		if got := i.states[enginetest.ThingRef(name)]; got == nil || string(got.Spec.Written) != spec {
			t.Errorf("%s was not restored", name)
		}
	}
	if i.states[enginetest.ThingRef("c")] != nil || i.objects[enginetest.ThingRef("c")] != nil {
		t.Error("c still exists")
	}
}

// TestUnapplied checks that objects with unapplied changes are listed with the spec last applied.
func TestUnapplied(t *testing.T) {
	i := newDatastore(t)
	first := map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false)}
	i.writeSpecs(first)
	i.apply(t, i.plan(t, "one", planner.Options{}))
	i.writeSpecs(map[string]string{"a": specOf("a", "two", "a", false), "b": first["b"], "c": first["b"]})
	s, _ := i.server()
	got := s.inventory.Unapplied(enginetest.Namespace)
	if len(got) != 1 || string(got[enginetest.ThingRef("a")]) != first["a"] {
		t.Errorf("unapplied: %v", got)
	}
	// Equal specs share memory.
	object, state := s.inventory.Object(enginetest.ThingRef("b")), s.inventory.State(enginetest.ThingRef("b"))
	if &object.Spec[0] != &state.Spec.Written[0] {
		t.Error("the spec of b is in memory twice")
	}
}
