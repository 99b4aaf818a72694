package infra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// model is what is written and what is there, as plain maps, and a planner that decides each thing anew by
// asking for what it needs: without numbers, clocks, memory or an order.
type model struct {
	t       *testing.T
	stand   *stand
	engine  *Engine // only to evaluate
	objects map[reference.Ref]*Object
	states  map[reference.Ref]*State
	version int

	decided map[reference.Ref]*verdict
}

type verdict struct {
	failed, running bool
	change          *plan.Change
	decision        *plan.Decision
}

func newModel(t *testing.T, s *stand) *model {
	return &model{t: t, stand: s, engine: s.engine(t, nil), objects: map[reference.Ref]*Object{}, states: map[reference.Ref]*State{}}
}

// plan decides everything, and gives the changes by address with how many could not be planned.
func (m *model) plan(what Planning) (map[plan.Address]*plan.Change, int) {
	m.decided = map[reference.Ref]*verdict{}
	out, failed := map[plan.Address]*plan.Change{}, 0
	all := maps.Clone(m.objects)
	for ref := range m.states {
		if _, is := all[ref]; !is {
			all[ref] = nil
		}
	}
	for ref := range all {
		v := m.decide(ref, what)
		switch {
		case v.failed:
			failed++
		default:
			out[addressOf(ref)] = v.change
		}
	}
	return out, failed
}

func (m *model) removed(ref reference.Ref) bool {
	return m.objects[ref] == nil || m.objects[ref].Deleting
}

func (m *model) uses(ref reference.Ref) []reference.Ref {
	_, refs := readSpec(m.engine.Language, m.objects[ref])
	return refs
}

// first tells whether something, or what uses it, is created before it is destroyed.
func (m *model) first(ref reference.Ref, seen map[reference.Ref]bool) bool {
	if m.removed(ref) || seen[ref] {
		return false
	}
	seen[ref] = true
	if read, _ := readSpec(m.engine.Language, m.objects[ref]); read.first {
		return true
	}
	for other := range m.objects {
		if !m.removed(other) && slices.Contains(m.uses(other), ref) && m.first(other, seen) {
			return true
		}
	}
	return false
}

func (m *model) decide(ref reference.Ref, what Planning) *verdict {
	if v, is := m.decided[ref]; is {
		if v.running {
			v.failed = true // a circle
		}
		return v
	}
	v := &verdict{running: true}
	m.decided[ref] = v
	kind, err := m.stand.Kind(ref)
	if err != nil {
		m.t.Fatal(err)
	}
	in := plan.Input{Address: addressOf(ref), Schema: kind.Schema, Provider: m.stand.pretender, Mode: plan.Normal, Refresh: what.Refresh,
		Replace: slices.Contains(what.Replace, ref)}
	var origins map[string]string
	if m.removed(ref) {
		in.Delete = m.objects[ref] != nil
		for other, o := range m.objects {
			if !o.Deleting && slices.Contains(m.uses(other), ref) {
				v.failed = true
			}
		}
		for other, s := range m.states {
			if other != ref && s.Spec.Current != nil && slices.Contains(s.Spec.Current.Dependencies, stateName(m.states[ref])) && m.decide(other, what).failed {
				v.failed = true
			}
		}
	} else {
		for _, used := range m.uses(ref) {
			if m.removed(used) || m.decide(used, what).failed {
				v.failed = true
			}
			if d := m.decided[used]; d != nil && d.decision != nil && d.decision.Action != plan.NoOp {
				in.Pending = true
			}
		}
		in.Lifecycle.CreateBeforeDestroy = m.first(ref, map[reference.Ref]bool{})
		if !v.failed {
			said, errs := m.engine.evaluate(m.t.Context(), m.objects[ref], &kind.Kind, reference.Values{Lookup: func(used reference.Ref) (cty.Value, error) {
				d := m.decided[used].decision
				k, _ := m.stand.Kind(used)
				return marked(&k.Schema.Block, d.After, d.Sensitive), nil
			}})
			if len(errs) > 0 {
				m.t.Fatal(errs)
			}
			in.Config, origins = said.config, said.origins
		}
	}
	v.running = false
	if v.failed {
		return v
	}
	if s := m.states[ref]; s != nil {
		if in.Prior, err = restored(s.Spec.Current); err != nil {
			m.t.Fatal(err)
		}
	}
	if v.decision, err = plan.Decide(m.t.Context(), in); err != nil {
		m.t.Logf("model: %v", err)
		v.failed = true
		return v
	}
	if v.change, err = v.decision.Change(kind.Schema, plan.Showing{Salt: testSalt, Origins: origins, Preconditions: preconditions(m.objects[ref], m.states[ref])}); err != nil {
		m.t.Fatal(err)
	}
	return v
}

// apply carries out a plan: each thing after what it waits for, with what is known by then.
func (m *model) apply(changes []*plan.Change, sealed map[plan.Address][]byte, settle bool) {
	t := m.t
	by := map[reference.Ref]*plan.Change{}
	for _, c := range changes {
		by[refOf(c.Address)] = c
	}
	values := map[reference.Ref]cty.Value{}
	var value func(ref reference.Ref) cty.Value
	var make func(ref reference.Ref)
	done := map[reference.Ref]bool{}
	value = func(ref reference.Ref) cty.Value {
		make(ref)
		if v, is := values[ref]; is {
			return v
		}
		kind, _ := m.stand.Kind(ref)
		prior, err := restored(m.states[ref].Spec.Current)
		if err != nil {
			t.Fatal(err)
		}
		v, err := readStored(kind, prior.Stored)
		if err != nil {
			t.Fatal(err)
		}
		return marked(&kind.Schema.Block, v, prior.Sensitive)
	}
	make = func(ref reference.Ref) {
		c := by[ref]
		if done[ref] || c == nil {
			return
		}
		done[ref] = true
		kind, _ := m.stand.Kind(ref)
		if len(sealed[c.Address]) == 0 {
			if !settle && ref.Kind == reference.Resource {
				return
			}
			return
		}
		planned, err := plan.Open(sealed[c.Address], kind.Schema)
		if err != nil {
			t.Fatal(err)
		}
		run := plan.Execution{Planned: planned, Schema: kind.Schema, Provider: m.stand.pretender}
		fingerprint := ""
		if m.objects[ref] != nil && !m.objects[ref].Deleting {
			said, errs := m.engine.evaluate(t.Context(), m.objects[ref], &kind.Kind, reference.Values{Lookup: func(used reference.Ref) (cty.Value, error) { return value(used), nil }})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			run.Config, run.Lifecycle = said.config, said.lifecycle()
			fingerprint = m.engine.fingerprint(m.objects[ref], said, kind, m.stand.opened)
		}
		if c.Action == plan.Replace {
			run.Step = plan.CreateNew
		}
		outcome, err := plan.Execute(t.Context(), run)
		if err != nil {
			t.Fatalf("%s: %v", c.Address, err)
		}
		if ref.Kind == reference.Data {
			values[ref] = marked(&kind.Schema.Block, outcome.State.Value, outcome.Sensitive)
			return
		}
		if outcome.State.Value.IsNull() {
			delete(m.states, ref)
			return
		}
		if c.Action == plan.NoOp && c.Drift == nil {
			return // nothing is stored anew
		}
		m.version++
		var dependencies []reference.Ref
		for _, used := range m.uses(ref) {
			if used.Kind == reference.Resource {
				dependencies = append(dependencies, used)
			}
		}
		state := stateOf(t, ref, m.version, outcome.State.Value, outcome.Sensitive, dependencies...)
		if settle {
			state.Spec.Settled = fingerprint
		}
		m.states[ref] = state
	}
	for ref := range by {
		make(ref)
	}
	for ref, o := range m.objects {
		if o.Deleting && by[ref] != nil && m.states[ref] == nil {
			delete(m.objects, ref)
		}
	}
}

// tell has a World know what the model knows.
func (m *model) tell(w *World, before map[reference.Ref]*Object, states map[reference.Ref]*State) {
	for ref := range before {
		if m.objects[ref] == nil {
			w.RemoveObject(ref)
		}
	}
	for ref := range states {
		if m.states[ref] == nil {
			w.RemoveState(ref)
		}
	}
	for ref, o := range m.objects {
		if before[ref] != o {
			w.SetObject(o)
		}
	}
	for ref, s := range m.states {
		if states[ref] != s {
			w.SetState(s)
		}
	}
}

// edit changes something at random.
func (m *model) edit(random *rand.Rand, names int) {
	m.version++
	ref := thing(fmt.Sprint("t", random.IntN(names)))
	if random.IntN(5) == 0 {
		ref = image(fmt.Sprint("d", random.IntN(3)))
	}
	switch roll := random.IntN(10); {
	case roll == 0 && m.objects[ref] != nil:
		delete(m.objects, ref)
	case roll == 1 && m.objects[ref] != nil && ref.Kind == reference.Resource && m.states[ref] != nil:
		o := *m.objects[ref]
		o.Deleting, o.ResourceVersion = true, fmt.Sprint("o", m.version)
		m.objects[ref] = &o
	case roll == 2 && m.states[ref] != nil:
		s := *m.states[ref]
		current := *s.Spec.Current
		current.Tainted = random.IntN(3) == 0
		s.Spec.Current, s.Spec.Settled, s.ResourceVersion = &current, "", fmt.Sprint("s", m.version)
		m.states[ref] = &s
	case roll == 3:
		m.stand.pretender.mu.Lock()
		m.stand.images[fmt.Sprint("x", random.IntN(2))] = fmt.Sprint("image ", m.version)
		m.stand.pretender.mu.Unlock()
	default:
		o := written(ref, int64(m.version), m.spec(random, ref, names))
		m.objects[ref] = o
	}
}

func (m *model) spec(random *rand.Rand, ref reference.Ref, names int) string {
	// Mostly to those of lower numbers, so that there are not only circles.
	other := func() string {
		var at int
		if _, err := fmt.Sscanf(ref.Name, "t%d", &at); err != nil || at == 0 || random.IntN(30) == 0 {
			at = names
		}
		if random.IntN(6) == 0 && ref.Kind == reference.Resource {
			return fmt.Sprintf(`data.demo_image["d%d"].id`, random.IntN(3))
		}
		return fmt.Sprintf(`demo_thing["t%d"].id`, random.IntN(at))
	}
	if ref.Kind == reference.Data {
		if random.IntN(4) == 0 {
			return fmt.Sprintf(`{"filter": %q}`, fmt.Sprintf(`${demo_thing["t%d"].content}`, random.IntN(2)))
		}
		return fmt.Sprintf(`{"filter": "x%d"}`, random.IntN(2))
	}
	spec := map[string]any{}
	switch random.IntN(4) {
	case 0:
		spec["content"] = fmt.Sprint("text ", random.IntN(3))
	case 1:
		spec["content"] = "${" + other() + "}"
	case 2:
		spec["content"] = "from ${" + other() + "}"
		spec["password"] = "${" + strings.Replace(other(), ".id", ".id", 1) + "}"
	}
	if random.IntN(3) == 0 {
		spec["zone"] = fmt.Sprint("z", random.IntN(2))
	}
	if random.IntN(5) == 0 {
		spec["depends_on"] = []string{strings.TrimSuffix(other(), ".id")}
	}
	if random.IntN(6) == 0 {
		spec["lifecycle"] = map[string]any{"create_before_destroy": true}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// TestModel edits random worlds. After each step the plan is what deciding everything anew says, and what the
// plan of a World says that has just been told of everything; and after it is applied there is
// nothing to do, and nobody is asked.
func TestModel(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 7))
			s := newStand()
			m := newModel(t, s)
			e := s.engine(t, nil)
			for range 20 {
				before, states := maps.Clone(m.objects), maps.Clone(m.states)
				for range 1 + random.IntN(6) {
					m.edit(random, 8)
				}
				m.tell(e.World, before, states)
				what := Planning{Refresh: random.IntN(6) == 0}
				if random.IntN(8) == 0 {
					if ref := thing(fmt.Sprint("t", random.IntN(8))); m.objects[ref] != nil {
						what.Replace = append(what.Replace, ref)
					}
				}
				if !what.Refresh {
					forget(e.World) // data sources are read once, and the model reads them each time
				}
				planned, store := planOf(t, e, what)
				changes, sealed := store.changes(t, planned, testSalt)
				want, failed := m.plan(what)
				compare(t, changes, want)
				if planned.NotPlanned != failed {
					t.Fatalf("%d are not planned, and %d cannot be: %+v", planned.NotPlanned, failed, planned.Problems)
				}
				fresh := s.engine(t, nil)
				m.tell(fresh.World, nil, nil)
				again, other := planOf(t, fresh, what)
				if len(again.Problems) != len(planned.Problems) || again.NotPlanned != planned.NotPlanned {
					t.Fatalf("%+v, and of a new World %+v", planned.Problems, again.Problems)
				}
				for i := range again.Problems {
					if again.Problems[i] != planned.Problems[i] {
						t.Fatalf("%+v, and of a new World %+v", planned.Problems[i], again.Problems[i])
					}
				}
				otherChanges, _ := other.changes(t, again, testSalt)
				byAddress := map[plan.Address]*plan.Change{}
				for _, c := range otherChanges {
					byAddress[c.Address] = c
				}
				compare(t, changes, byAddress)
				if random.IntN(2) == 0 {
					before, states := maps.Clone(m.objects), maps.Clone(m.states)
					m.apply(changes, sealed, true)
					m.tell(e.World, before, states)
					m.nothingToDo(e, failed)
				}
			}
		})
	}
}

// forget has a World forget what data sources are.
func forget(w *World) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.nodes {
		if n := &w.nodes[i]; n.ref.Kind == reference.Data {
			n.moved = w.tick()
			n.memo.fingerprint = ""
		}
	}
}

// nothingToDo plans twice after an apply: the first may still ask about what only turned out to be as it was, the
// second nobody about anything.
func (m *model) nothingToDo(e *Engine, failed int) {
	planned, _ := planOf(m.t, e, Planning{})
	if !planned.Contents.Counts.Empty() && failed == 0 {
		m.t.Fatalf("after an apply there is something to do: %+v", planned.Contents.Counts)
	}
	m.stand.took()
	if failed > 0 {
		return
	}
	planned, _ = planOf(m.t, e, Planning{})
	if calls := m.stand.took(); len(calls) > 0 || planned.Calls > 0 || !planned.Contents.Counts.Empty() {
		m.t.Fatalf("the second plan after an apply asks: %v", calls)
	}
}

func compare(t *testing.T, got []*plan.Change, want map[plan.Address]*plan.Change) {
	t.Helper()
	text := func(c *plan.Change) []byte {
		if c == nil {
			return nil
		}
		shown := *c
		shown.Sealed = ""
		if c.Action == plan.NoOp {
			shown.Preconditions = nil // of what was not looked at there are none
		}
		out, err := shown.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	seen := map[plan.Address]bool{}
	for _, c := range got {
		seen[c.Address] = true
		if !bytes.Equal(text(c), text(want[c.Address])) {
			t.Fatalf("planned\n%s\nwant\n%s", text(c), text(want[c.Address]))
		}
	}
	for address, c := range want {
		if !seen[address] {
			t.Fatalf("not planned, want\n%s", text(c))
		}
	}
}
