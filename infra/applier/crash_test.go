package applier

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/zclconf/go-cty/cty"
)

// describe returns everything that exists: resources in the cloud, states, objects and conditions.
func (i *datastore) describe() string {
	var out []string
	i.cloud.mu.Lock()
	for id, v := range i.cloud.things {
		out = append(out, fmt.Sprintf("thing %s %v", id, labelsOf(v)))
	}
	i.cloud.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	for ref, s := range i.states {
		text := "state " + ref.Name
		if s.Spec.Current != nil {
			text += fmt.Sprintf(" %s after %v", s.Spec.Current.Value, s.Spec.Current.Dependencies)
		}
		text += fmt.Sprintf(" deposed %d, pending %v, conditions %v", len(s.Spec.Deposed), s.Spec.Pending != nil, i.status[ref].Conditions)
		out = append(out, text)
	}
	for ref, o := range i.objects {
		out = append(out, fmt.Sprintf("object %s deleting %v held %v", ref.Name, o.Deleting, o.HasFinalizer))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// inconsistencies returns resources without a state, states without a resource, and pending
// changes.
func (i *datastore) inconsistencies() []string {
	var out []string
	ids := map[string]bool{}
	i.mu.Lock()
	defer i.mu.Unlock()
	note := func(of string, value []byte) {
		for id := range i.cloud.things {
			if strings.Contains(string(value), `"id":"`+id+`"`) {
				ids[id] = true
				return
			}
		}
		out = append(out, of+" has a state, but no resource")
	}
	for ref, s := range i.states {
		if s.Spec.Current != nil {
			note(ref.Name, s.Spec.Current.Value)
		}
		for _, d := range s.Spec.Deposed {
			note(ref.Name+" deposed", d.Value)
		}
		if s.Spec.Pending != nil {
			out = append(out, ref.Name+" is still pending")
		}
	}
	for id := range i.cloud.things {
		if !ids[id] {
			out = append(out, id+" has no state")
		}
	}
	return out
}

// randomSpecs returns specs that refer to earlier ones, some through a data source.
func randomSpecs(random *rand.Rand, n int, from map[string]string) map[string]string {
	out := map[string]string{}
	for at := range n {
		name := fmt.Sprintf("t%d", at)
		if random.IntN(5) == 0 {
			continue // it does not exist, or no longer
		}
		var references []string
		for before := range at {
			other := fmt.Sprintf("t%d", before)
			if _, there := out[other]; !there || random.IntN(3) > 0 {
				continue
			}
			if data := "data-" + other; random.IntN(5) == 0 {
				out[data] = fmt.Sprintf(`{"filter":"${demo_thing[\"%s\"].id}"}`, other)
				other = data
			}
			references = append(references, other)
		}
		if old, there := from[name]; there && random.IntN(3) == 0 && hasAllReferences(out, old) {
			out[name] = old
			continue
		}
		out[name] = specOf(name, []string{"one", "two"}[random.IntN(2)], []string{"a", "b"}[random.IntN(2)], random.IntN(4) == 0, references...)
	}
	return out
}

// hasAllReferences reports whether everything that a spec refers to exists.
func hasAllReferences(specs map[string]string, spec string) bool {
	for at := range 20 {
		name := fmt.Sprintf("t%d", at)
		_, there := specs[name]
		_, data := specs["data-"+name]
		if !there && strings.Contains(spec, fmt.Sprintf(`demo_thing[\"%s\"]`, name)) || !data && strings.Contains(spec, "data-"+name+`\"]`) {
			return false
		}
	}
	return true
}

// causeDrift changes and deletes some resources outside Atoll.
func (c *fakeCloud) causeDrift(random *rand.Rand) {
	for _, id := range slices.Sorted(maps.Keys(c.things)) {
		switch random.IntN(8) {
		case 0:
			of := c.things[id].AsValueMap()
			of["content"] = cty.StringVal("drifted")
			c.things[id] = cty.ObjectVal(of)
		case 1:
			delete(c.things, id)
		}
	}
}

// TestCrashAnywhere crashes a server before and after each of its calls. The next server resumes
// and reaches the same result as without a crash. Nothing is done twice, and nothing is lost.
func TestCrashAnywhere(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	crashes := 0
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		start := newDatastore(t)
		n := 3 + random.IntN(5)
		first := randomSpecs(random, n, nil)
		start.writeSpecs(first)
		start.apply(t, start.plan(t, "first", planner.Options{}))
		start.writeSpecs(randomSpecs(random, n, first))
		refresh := random.IntN(2) == 0
		if refresh {
			start.cloud.causeDrift(random)
		}
		p := start.plan(t, "second", planner.Options{Refresh: refresh})
		list, _ := p.store.Changes(t, p.planned.Contents, enginetest.Salt())

		straight := start.clone()
		s, e := straight.server()
		want, err := e.Apply(t.Context(), p.applying(), p.store)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		fail := func(step string, of *datastore) {
			t.Helper()
			for _, c := range list {
				t.Logf("%s %s %s", c.Action, c.Address, c.Reason)
			}
			t.Fatalf("seed %d: %s\n%s\n%s", seed, step, of.cloud.operations(), of.describe())
		}
		check := func(step string, of *datastore, got *Result) {
			t.Helper()
			if wrong := slices.Concat(of.cloud.violations(), of.inconsistencies()); len(wrong) > 0 {
				fail(step+": "+strings.Join(wrong, "; "), of)
			}
			if got.Succeeded != got.Total || len(got.Problems) > 0 || got.Summary != want.Summary {
				fail(fmt.Sprintf("%s: %+v, want %+v", step, got, want), of)
			}
			if is, be := of.describe(), straight.describe(); is != be {
				fail(step+": the result differs from that without a crash, which is\n"+be+"\n", of)
			}
		}
		check("without a crash", straight, want)
		again, store := straight.plan(t, "", planner.Options{}), (*enginetest.PlanStore)(nil)
		if store = again.store; store.Actions(t, again.planned.Contents, again.planned.Problems) != "" {
			fail("the next plan has changes: "+store.Actions(t, again.planned.Contents, again.planned.Problems), straight)
		}
		for at := 1; at <= s.calls; at++ {
			for _, after := range []bool{false, true} {
				i := start.clone()
				i.applyCrashing(t, p, at, after)
				if random.IntN(2) == 0 {
					i.applyCrashing(t, p, 1+random.IntN(s.calls), random.IntN(2) == 0)
				}
				check(fmt.Sprintf("crash at %d of %d, after %v", at, s.calls, after), i, i.apply(t, p))
				crashes++
			}
		}
	}
	t.Logf("%d crashes", crashes)
}

// TestStoreFaults checks that random store failures, before or after the write, make no difference.
func TestStoreFaults(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 2))
		i := newDatastore(t)
		specs := randomSpecs(random, 6, nil)
		i.writeSpecs(specs)
		faulty := func(uid string) {
			p := i.plan(t, uid, planner.Options{})
			s, e := i.server()
			s.faults = func(int) (bool, bool) { return random.IntN(4) == 0, random.IntN(2) == 0 }
			got, err := e.Apply(t.Context(), p.applying(), p.store)
			if err != nil || got.Succeeded != got.Total {
				t.Fatalf("seed %d: %+v, %v", seed, got, err)
			}
		}
		faulty("first")
		i.writeSpecs(randomSpecs(random, 6, specs))
		faulty("second")
		if wrong := slices.Concat(i.cloud.violations(), i.inconsistencies()); len(wrong) > 0 {
			t.Fatalf("seed %d: %s\n%s\n%s", seed, strings.Join(wrong, "; "), i.cloud.operations(), i.describe())
		}
	}
}
