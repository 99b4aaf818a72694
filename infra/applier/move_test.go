package applier

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planner"
)

// movedFrom adds spec.movedFrom to a spec.
func movedFrom(spec, from string) string { return `{"movedFrom":"` + from + `",` + spec[1:] }

// renamed returns the chain with disk renamed to volume. The resource's own name stays.
func renamed(content, zone string, createFirst bool) map[string]string {
	specs := chain()
	delete(specs, "disk")
	specs["volume"] = movedFrom(specOf("disk", content, zone, createFirst, "net"), "disk")
	specs["vm"] = strings.Replace(specs["vm"], `[\"disk\"]`, `[\"volume\"]`, 1)
	return specs
}

// TestMove: an object gets another name, alone or with other changes, and its resource stays.
func TestMove(t *testing.T) {
	for _, c := range []struct {
		name, content, zone string
		createFirst         bool
		want, summary       string
	}{
		{"only the name", "one", "a", false, "", "Plan: 1 to move, 0 to add, 0 to change, 0 to destroy."},
		{"with an update", "two", "a", false, "update disk", "Plan: 1 to move, 0 to add, 1 to change, 0 to destroy."},
		{"with a replacement", "one", "b", false, "delete disk, create disk, update vm", "Plan: 1 to move, 1 to add, 1 to change, 1 to destroy."},
		{"with create before destroy", "one", "b", true, "create disk, update vm, delete disk", "Plan: 1 to move, 1 to add, 1 to change, 1 to destroy."},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := newDatastore(t)
			i.writeSpecs(chain())
			i.apply(t, i.plan(t, "one", planner.Options{}))
			i.writeSpecs(renamed(c.content, c.zone, c.createFirst))
			i.cloud.log, i.cloud.inUse = nil, nil
			p := i.plan(t, "two", planner.Options{})
			if got := p.planned.Contents.Counts; len(p.planned.Problems) > 0 || got.Summary() != c.summary {
				t.Fatalf("%s %+v", got.Summary(), p.planned.Problems)
			}
			got := i.apply(t, p)
			if got.Succeeded != got.Total || got.Summary.Move != 1 || i.cloud.operations() != c.want {
				t.Fatalf("%s, want %s: %+v", i.cloud.operations(), c.want, got)
			}
			i.checkMoved(t)
			if p := i.plan(t, "three", planner.Options{}); !p.planned.Contents.Counts.Empty() || len(p.planned.Problems) > 0 {
				t.Errorf("the next plan: %s %+v", p.planned.Contents.Counts.Summary(), p.planned.Problems)
			}
			i.cloud.log, i.cloud.inUse = nil, nil
			i.writeSpecs(nil)
			i.apply(t, i.plan(t, "four", planner.Options{}))
			if i.cloud.operations() != "delete vm, delete disk, delete net" {
				t.Errorf("destroyed in the order %s", i.cloud.operations())
			}
		})
	}
}

// checkMoved checks that disk is volume now, and everything else as it was.
func (i *datastore) checkMoved(t *testing.T) {
	t.Helper()
	wrong := append(i.cloud.violations(), i.inconsistencies()...)
	s := i.states[enginetest.ThingRef("volume")]
	if s == nil || s.Spec.Current == nil || s.Spec.Object.UID != "uid-volume" || s.Spec.Object.Name != "volume" || len(s.Spec.Deposed) > 0 {
		wrong = append(wrong, fmt.Sprintf("the state of volume is %+v", s))
	}
	if i.states[enginetest.ThingRef("disk")] != nil || i.objects[enginetest.ThingRef("disk")] != nil {
		wrong = append(wrong, "disk has a state or an object")
	}
	if len(wrong) > 0 {
		t.Fatalf("%s\n%s", strings.Join(wrong, "\n"), i.describe())
	}
}

// TestMoveCrashes: a server crashes at each of its calls. Resumed, or planned again, the resource is
// moved. It is never destroyed, and always in a state.
func TestMoveCrashes(t *testing.T) {
	for _, zone := range []string{"a", "b"} {
		for crash := 1; crash < 30; crash++ {
			for _, how := range []string{"resume", "resume, answer lost", "plan again", "plan again, answer lost"} {
				i := newDatastore(t)
				i.writeSpecs(chain())
				i.apply(t, i.plan(t, "one", planner.Options{}))
				i.writeSpecs(renamed("one", zone, false))
				i.cloud.log, i.cloud.inUse = nil, nil
				p := i.plan(t, "two", planner.Options{})
				i.applyCrashing(t, p, crash, strings.HasSuffix(how, "lost"))
				if strings.HasPrefix(how, "resume") || zone == "b" {
					i.apply(t, p) // a call with an unknown outcome is only resolved by its own Apply
				}
				got := i.apply(t, i.plan(t, "three", planner.Options{}))
				if got.Failed+got.Refused+got.Blocked > 0 {
					t.Fatalf("zone %s, crash at call %d, %s: %+v\n%s", zone, crash, how, got, i.describe())
				}
				i.checkMoved(t)
				deletes := strings.Count(i.cloud.operations(), "delete")
				if want := strings.Count(zone, "b"); deletes != want {
					t.Fatalf("zone %s, crash at call %d, %s: %s", zone, crash, how, i.cloud.operations())
				}
			}
		}
	}
}

// TestMoveMakesOldPlansStale: a plan that destroys the resource under its old name was approved before
// another one moved it, and the move crashed half-way.
func TestMoveMakesOldPlansStale(t *testing.T) {
	for crash := range 12 {
		i := newDatastore(t)
		disk := specOf("disk", "one", "a", false)
		i.writeSpecs(map[string]string{"disk": disk})
		i.apply(t, i.plan(t, "one", planner.Options{}))
		i.writeSpecs(nil)
		destroys := i.plan(t, "destroys", planner.Options{})
		i.writeSpecs(map[string]string{"volume": movedFrom(disk, "disk")})
		moves := i.plan(t, "moves", planner.Options{})
		i.cloud.log = nil
		if crash == 0 {
			i.apply(t, moves)
		} else {
			i.applyCrashing(t, moves, crash, true)
		}
		marked := i.states[enginetest.ThingRef("disk")] == nil || i.states[enginetest.ThingRef("disk")].Spec.MovingTo != nil
		i.apply(t, destroys)
		if strings.Contains(i.cloud.operations(), "delete disk") == marked {
			t.Fatalf("crash at call %d, marked %v: %s\n%s", crash, marked, i.cloud.operations(), i.describe())
		}
	}
}

// TestMoveKeepsOrder: dependents that were not applied since the move still name the old state. They
// are destroyed before the resource.
func TestMoveKeepsOrder(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(chain())
	i.apply(t, i.plan(t, "one", planner.Options{}))
	i.writeSpecs(renamed("one", "a", false))
	i.apply(t, i.plan(t, "two", planner.Options{Targets: []expr.Ref{enginetest.ThingRef("volume")}}))
	if got := i.states[enginetest.ThingRef("vm")].Spec.Current.Dependencies; !slices.Contains(got, "things.demo.disk") {
		t.Fatalf("vm depends on %v", got)
	}
	i.cloud.log, i.cloud.inUse = nil, nil
	i.writeSpecs(nil)
	i.apply(t, i.plan(t, "three", planner.Options{}))
	if i.cloud.operations() != "delete vm, delete disk, delete net" || len(i.cloud.violations()) > 0 {
		t.Errorf("%s, %v", i.cloud.operations(), i.cloud.violations())
	}
}

// TestMoveOfForgotten: a resource is forgotten under its old name and imported under the new one by the
// same plan. If its type cannot be imported, its state moves.
func TestMoveOfForgotten(t *testing.T) {
	for importable, want := range map[bool]string{
		true:  "Plan: 1 to import, 0 to add, 0 to change, 0 to destroy, 1 to forget.",
		false: "Plan: 1 to move, 0 to add, 0 to change, 0 to destroy.",
	} {
		i := newDatastore(t)
		i.NoImport = !importable
		i.writeSpecs(map[string]string{"disk": `{}`})
		i.apply(t, i.plan(t, "one", planner.Options{}))
		i.writeSpecs(map[string]string{"volume": `{}`})
		i.objects[enginetest.ThingRef("disk")].Forget = true
		i.objects[enginetest.ThingRef("volume")].ImportID = "id-#1"
		i.cloud.log, i.cloud.inUse = nil, nil
		p := i.plan(t, "two", planner.Options{})
		if got := p.planned.Contents.Counts.Summary(); got != want {
			t.Fatal(got, p.planned.Problems)
		}
		i.apply(t, p)
		if i.states[enginetest.ThingRef("volume")] == nil || i.states[enginetest.ThingRef("disk")] != nil || i.objects[enginetest.ThingRef("disk")] != nil || i.cloud.operations() != "" {
			t.Errorf("importable %v: %s\n%s", importable, i.cloud.operations(), i.describe())
		}
	}
}

// TestMoveProblems checks what cannot be moved, and how that reads.
func TestMoveProblems(t *testing.T) {
	disk := specOf("disk", "one", "a", false)
	for name, c := range map[string]struct {
		specs map[string]string
		want  string
	}{
		"the old object exists": {map[string]string{"disk": disk, "volume": movedFrom(disk, "disk")}, "still exists: delete it first"},
		"two take it over":      {map[string]string{"volume": movedFrom(disk, "disk"), "store": movedFrom(disk, "disk")}, "only one object can take the resource over"},
		"itself":                {map[string]string{"volume": movedFrom(disk, "volume")}, "names the object itself"},
		"not a reference":       {map[string]string{"volume": movedFrom(disk, "${disk}")}, "must not be an expression"},
		"part of a resource":    {map[string]string{"volume": movedFrom(disk, `demo_thing[\"disk\"].id`)}, "is not a resource"},
		"a data source":         {map[string]string{"volume": movedFrom(disk, `data.demo_image[\"disk\"]`)}, "is not a resource"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newDatastore(t)
			i.writeSpecs(map[string]string{"disk": disk})
			i.apply(t, i.plan(t, "one", planner.Options{}))
			i.writeSpecs(c.specs)
			p := i.plan(t, "two", planner.Options{})
			if len(p.planned.Problems) == 0 || !strings.Contains(p.planned.Problems[0].Message, c.want) || p.planned.Problems[0].Field != "spec.movedFrom" {
				t.Errorf("%+v", p.planned.Problems)
			}
		})
	}
}

// TestMoveOfNothing: once applied, or if the old name never had a resource, spec.movedFrom means nothing.
func TestMoveOfNothing(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(map[string]string{"volume": movedFrom(specOf("volume", "one", "a", false), `demo_thing[\"disk\"]`)})
	p := i.plan(t, "one", planner.Options{})
	if got := p.planned.Contents.Counts.Summary(); got != "Plan: 1 to add, 0 to change, 0 to destroy." {
		t.Fatal(got, p.planned.Problems)
	}
	i.apply(t, p)
	// Another resource gets the old name. It is not touched, as long as it is not deleted.
	i.writeSpecs(map[string]string{"volume": movedFrom(specOf("volume", "one", "a", false), "disk"), "disk": specOf("disk", "one", "a", false)})
	p = i.plan(t, "two", planner.Options{})
	if got := p.planned.Contents.Counts.Summary(); got != "Plan: 1 to add, 0 to change, 0 to destroy." {
		t.Fatal(got, p.planned.Problems)
	}
}

// TestMoveToAnotherNamespace: a resource is released by an apply of its namespace, taken over by one of
// the other, and in between neither changes it.
func TestMoveToAnotherNamespace(t *testing.T) {
	i := newDatastore(t)
	elsewhere := expr.Ref{Kind: expr.Resource, Type: "demo_thing", Namespace: "other", Name: "volume"}
	taker := enginetest.NewObject(elsewhere, 1, movedFrom(specOf("disk", "one", "a", false), `namespace[\"shop\"].demo_thing[\"disk\"]`))
	i.writeSpecs(map[string]string{"disk": specOf("disk", "one", "a", false)})
	i.apply(t, i.plan(t, "one", planner.Options{}))
	i.objects[elsewhere] = taker
	if p := i.plan(t, "early", planner.Options{Namespace: "other"}); len(p.planned.Problems) != 1 || !strings.Contains(p.planned.Problems[0].Message, "annotate the object with infra.atoll.dev/moved-to=other/volume") {
		t.Fatalf("%+v", p.planned.Problems)
	}
	i.cloud.log = nil
	deleted := *i.objects[enginetest.ThingRef("disk")]
	deleted.Deleting, deleted.MovedTo = true, "other/volume"
	i.objects[enginetest.ThingRef("disk")] = &deleted
	p := i.plan(t, "release", planner.Options{})
	if got := p.planned.Contents.Counts; got.Forget != 1 || got.Delete != 0 {
		t.Fatal(got.Summary(), p.planned.Problems)
	}
	i.apply(t, p)
	if s := i.states[enginetest.ThingRef("disk")]; s == nil || s.Spec.MovingTo == nil || s.Spec.MovingTo.Namespace != "other" || i.objects[enginetest.ThingRef("disk")] == nil {
		t.Fatalf("after the release: %s", i.describe())
	}
	for _, mode := range []change.Mode{change.Normal, change.Destroy} {
		if p := i.plan(t, "between", planner.Options{Mode: mode}); !p.planned.Contents.Counts.Empty() {
			t.Errorf("in between: %s", p.planned.Contents.Counts.Summary())
		}
	}
	p = i.plan(t, "take", planner.Options{Namespace: "other"})
	if got := p.planned.Contents.Counts.Summary(); got != "Plan: 1 to move, 0 to add, 0 to change, 0 to destroy." {
		t.Fatal(got, p.planned.Problems)
	}
	i.apply(t, p)
	s := i.states[elsewhere]
	if s == nil || s.Spec.Current == nil || s.Spec.MovingTo != nil || len(i.states) != 1 || i.objects[enginetest.ThingRef("disk")] != nil || i.cloud.operations() != "" || len(i.inconsistencies()) > 0 {
		t.Errorf("%s: %s", i.cloud.operations(), i.describe())
	}
	if _, is := i.objects[elsewhere]; !is || infra.CheckConfigured(s, "c1") != nil {
		t.Error("the object is gone")
	}
}
