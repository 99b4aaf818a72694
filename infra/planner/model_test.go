package planner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
)

// model holds desired objects and states in plain maps, and plans by recursion: without indexes,
// clocks, memos or an order.
type model struct {
	t       *testing.T
	env     *enginetest.Env
	engine  *Planner // only to evaluate
	objects map[expr.Ref]*infra.Object
	states  map[expr.Ref]*infra.State
	version int

	decided map[expr.Ref]*verdict
}

type verdict struct {
	failed, running bool
	change          *change.Change
	decision        *decide.Decision
}

func newModel(t *testing.T, s *enginetest.Env) *model {
	return &model{t: t, env: s, engine: newPlanner(t, s, nil), objects: map[expr.Ref]*infra.Object{}, states: map[expr.Ref]*infra.State{}}
}

// plan returns the changes by address, and the number of resources that cannot be planned.
func (m *model) plan(opts Options) (map[change.Address]*change.Change, int) {
	m.decided = map[expr.Ref]*verdict{}
	out, failed := map[change.Address]*change.Change{}, 0
	all := maps.Clone(m.objects)
	for ref := range m.states {
		if _, is := all[ref]; !is {
			all[ref] = nil
		}
	}
	for ref := range all {
		v := m.decide(ref, opts)
		switch {
		case v.failed:
			failed++
		default:
			out[infra.AddressOf(ref)] = v.change
		}
	}
	return out, failed
}

func (m *model) removed(ref expr.Ref) bool {
	return m.objects[ref] == nil || m.objects[ref].Deleting
}

// parsed returns the spec of an object and the resources that it refers to, none if it is invalid.
func (m *model) parsed(ref expr.Ref) (spec map[string]any, uses []expr.Ref) {
	if err := json.Unmarshal(m.objects[ref].Spec, &spec); err != nil {
		return nil, nil
	}
	parsed, err := m.engine.Evaluator.Language.Spec(spec, ref.Namespace)
	if err != nil {
		return nil, nil
	}
	for _, used := range parsed.References() {
		if used.Kind != expr.Kubernetes && !slices.Contains(uses, used.Ref) {
			uses = append(uses, used.Ref)
		}
	}
	return spec, uses
}

func (m *model) uses(ref expr.Ref) []expr.Ref {
	_, uses := m.parsed(ref)
	return uses
}

// first reports whether a resource, or one that uses it, has create_before_destroy.
func (m *model) first(ref expr.Ref, seen map[expr.Ref]bool) bool {
	if m.removed(ref) || seen[ref] {
		return false
	}
	seen[ref] = true
	spec, _ := m.parsed(ref)
	lifecycle, _ := spec["lifecycle"].(map[string]any)
	if first, _ := lifecycle["create_before_destroy"].(bool); first {
		return true
	}
	for other := range m.objects {
		if !m.removed(other) && slices.Contains(m.uses(other), ref) && m.first(other, seen) {
			return true
		}
	}
	return false
}

func (m *model) decide(ref expr.Ref, opts Options) *verdict {
	if v, is := m.decided[ref]; is {
		if v.running {
			v.failed = true // a cycle
		}
		return v
	}
	v := &verdict{running: true}
	m.decided[ref] = v
	kind, err := m.env.Kind(ref)
	if err != nil {
		m.t.Fatal(err)
	}
	in := decide.Input{Address: infra.AddressOf(ref), Schema: kind.Schema, Provider: m.env.Provider, Mode: change.Normal, Refresh: opts.Refresh,
		Replace: slices.Contains(opts.Replace, ref)}
	var origins map[string]string
	if m.removed(ref) {
		in.Delete = m.objects[ref] != nil
		for other, o := range m.objects {
			if !o.Deleting && slices.Contains(m.uses(other), ref) {
				v.failed = true
			}
		}
		for other, s := range m.states {
			if other != ref && s.Spec.Current != nil && slices.Contains(s.Spec.Current.Dependencies, m.states[ref].Name()) && m.decide(other, opts).failed {
				v.failed = true
			}
		}
	} else {
		for _, used := range m.uses(ref) {
			if m.removed(used) || m.decide(used, opts).failed {
				v.failed = true
			}
			if d := m.decided[used]; d != nil && d.decision != nil && d.decision.Action != change.NoOp {
				in.Pending = true
			}
		}
		in.Lifecycle.CreateBeforeDestroy = m.first(ref, map[expr.Ref]bool{})
		if !v.failed {
			evaluated, errs := m.engine.Evaluator.Evaluate(m.t.Context(), m.objects[ref], &kind.Kind, expr.Scope{Lookup: func(used expr.Ref) (cty.Value, error) {
				d := m.decided[used].decision
				k, _ := m.env.Kind(used)
				return evaluate.Mark(&k.Schema.Block, d.After, d.Sensitive), nil
			}})
			if len(errs) > 0 {
				m.t.Fatal(errs)
			}
			in.Config, origins = evaluated.Config, evaluated.Origins
		}
	}
	v.running = false
	if v.failed {
		return v
	}
	if s := m.states[ref]; s != nil {
		if in.Prior, err = evaluate.Prior(s.Spec.Current); err != nil {
			m.t.Fatal(err)
		}
	}
	if v.decision, err = decide.Decide(m.t.Context(), in); err != nil {
		m.t.Logf("model: %v", err)
		v.failed = true
		return v
	}
	if v.change, err = v.decision.Change(kind.Schema, decide.ChangeOptions{Salt: enginetest.Salt(), Origins: origins, Preconditions: infra.Preconditions(m.objects[ref], m.states[ref])}); err != nil {
		m.t.Fatal(err)
	}
	return v
}

// apply applies a plan, dependencies first, with the values known by then.
func (m *model) apply(changes []*change.Change, sealed map[change.Address][]byte, settle bool) {
	t := m.t
	by := map[expr.Ref]*change.Change{}
	for _, c := range changes {
		by[infra.RefOf(c.Address)] = c
	}
	values := map[expr.Ref]cty.Value{}
	var value func(ref expr.Ref) cty.Value
	var make func(ref expr.Ref)
	done := map[expr.Ref]bool{}
	value = func(ref expr.Ref) cty.Value {
		make(ref)
		if v, is := values[ref]; is {
			return v
		}
		kind, _ := m.env.Kind(ref)
		prior, err := evaluate.Prior(m.states[ref].Spec.Current)
		if err != nil {
			t.Fatal(err)
		}
		v, err := evaluate.DecodeStored(kind, prior.Stored)
		if err != nil {
			t.Fatal(err)
		}
		return evaluate.Mark(&kind.Schema.Block, v, prior.Sensitive)
	}
	make = func(ref expr.Ref) {
		c := by[ref]
		if done[ref] || c == nil {
			return
		}
		done[ref] = true
		kind, _ := m.env.Kind(ref)
		if len(sealed[c.Address]) == 0 {
			if !settle && ref.Kind == expr.Resource {
				return
			}
			return
		}
		planned, err := decide.Open(sealed[c.Address], kind.Schema)
		if err != nil {
			t.Fatal(err)
		}
		run := decide.Execution{Planned: planned, Schema: kind.Schema, Provider: m.env.Provider}
		fingerprint := ""
		if m.objects[ref] != nil && !m.objects[ref].Deleting {
			evaluated, errs := m.engine.Evaluator.Evaluate(t.Context(), m.objects[ref], &kind.Kind, expr.Scope{Lookup: func(used expr.Ref) (cty.Value, error) { return value(used), nil }})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			run.Config, run.Lifecycle = evaluated.Config, evaluated.Lifecycle()
			fingerprint = evaluated.Fingerprint(m.objects[ref], kind, m.env.ConfigRevision)
		}
		if c.Action == change.Replace {
			run.Step = decide.CreateNew
		}
		outcome, err := decide.Execute(t.Context(), run)
		if err != nil {
			t.Fatalf("%s: %v", c.Address, err)
		}
		if ref.Kind == expr.Data {
			values[ref] = evaluate.Mark(&kind.Schema.Block, outcome.State.Value, outcome.Sensitive)
			return
		}
		if outcome.State.Value.IsNull() {
			delete(m.states, ref)
			return
		}
		if c.Action == change.NoOp && c.Drift == nil {
			return // no new state is stored
		}
		m.version++
		var dependencies []expr.Ref
		for _, used := range m.uses(ref) {
			if used.Kind == expr.Resource {
				dependencies = append(dependencies, used)
			}
		}
		state := enginetest.NewState(t, ref, m.version, outcome.State.Value, outcome.Sensitive, dependencies...)
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

// syncInventory updates an Inventory to match the model.
func (m *model) syncInventory(w *inventory.Inventory, before map[expr.Ref]*infra.Object, states map[expr.Ref]*infra.State) {
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

// edit makes a random change.
func (m *model) edit(random *rand.Rand, names int) {
	m.version++
	ref := enginetest.ThingRef(fmt.Sprint("t", random.IntN(names)))
	if random.IntN(5) == 0 {
		ref = enginetest.ImageRef(fmt.Sprint("d", random.IntN(3)))
	}
	switch roll := random.IntN(10); {
	case roll == 0 && m.objects[ref] != nil:
		delete(m.objects, ref)
	case roll == 1 && m.objects[ref] != nil && ref.Kind == expr.Resource && m.states[ref] != nil:
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
		m.env.SetImage(fmt.Sprint("x", random.IntN(2)), fmt.Sprint("image ", m.version))
	default:
		o := enginetest.NewObject(ref, int64(m.version), enginetest.RandomSpec(random, ref, names))
		m.objects[ref] = o
	}
}

// TestModel edits random objects. After each step the plan equals the model's, and that of a new
// Inventory. After it is applied there is nothing to do, and no provider is called.
func TestModel(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 7))
			s := enginetest.NewEnv()
			m := newModel(t, s)
			e := newPlanner(t, s, nil)
			for range 20 {
				before, states := maps.Clone(m.objects), maps.Clone(m.states)
				for range 1 + random.IntN(6) {
					m.edit(random, 8)
				}
				m.syncInventory(e.Inventory, before, states)
				opts := Options{Refresh: random.IntN(6) == 0}
				if random.IntN(8) == 0 {
					if ref := enginetest.ThingRef(fmt.Sprint("t", random.IntN(8))); m.objects[ref] != nil {
						opts.Replace = append(opts.Replace, ref)
					}
				}
				if !opts.Refresh {
					forget(e.Inventory) // plans read data sources once, and the model every time
				}
				planned, store := mustPlan(t, e, opts)
				changes, sealed := store.Changes(t, planned.Contents, enginetest.Salt())
				want, failed := m.plan(opts)
				compare(t, changes, want)
				if planned.NotPlanned != failed {
					t.Fatalf("%d not planned, want %d: %+v", planned.NotPlanned, failed, planned.Problems)
				}
				fresh := newPlanner(t, s, nil)
				m.syncInventory(fresh.Inventory, nil, nil)
				again, other := mustPlan(t, fresh, opts)
				if len(again.Problems) != len(planned.Problems) || again.NotPlanned != planned.NotPlanned {
					t.Fatalf("%+v, with a new Inventory %+v", planned.Problems, again.Problems)
				}
				for i := range again.Problems {
					if again.Problems[i] != planned.Problems[i] {
						t.Fatalf("%+v, with a new Inventory %+v", planned.Problems[i], again.Problems[i])
					}
				}
				otherChanges, _ := other.Changes(t, again.Contents, enginetest.Salt())
				byAddress := map[change.Address]*change.Change{}
				for _, c := range otherChanges {
					byAddress[c.Address] = c
				}
				compare(t, changes, byAddress)
				if random.IntN(2) == 0 {
					before, states := maps.Clone(m.objects), maps.Clone(m.states)
					m.apply(changes, sealed, true)
					m.syncInventory(e.Inventory, before, states)
					m.nothingToDo(e, failed)
				}
			}
		})
	}
}

// forget invalidates the memos of data sources.
func forget(w *inventory.Inventory) {
	taken, err := w.Snapshot(inventory.SnapshotOptions{Namespace: enginetest.Namespace, Select: (*inventory.Resource).IsData})
	if err != nil {
		panic(err)
	}
	var updates []inventory.MemoUpdate
	for i := range taken.Resources[:taken.Selected] {
		r := &taken.Resources[i]
		memo := r.Memo
		memo.Fingerprint = ""
		updates = append(updates, inventory.MemoUpdate{Resource: r, Memo: memo})
	}
	w.RecordPlan(taken, updates)
}

// nothingToDo plans twice after an apply. The first plan may still ask the provider about values
// that turned out unchanged; the second asks nothing.
func (m *model) nothingToDo(e *Planner, failed int) {
	planned, _ := mustPlan(m.t, e, Options{})
	if !planned.Contents.Counts.Empty() && failed == 0 {
		m.t.Fatalf("the plan after an apply has changes: %+v", planned.Contents.Counts)
	}
	m.env.TakeCalls()
	if failed > 0 {
		return
	}
	planned, _ = mustPlan(m.t, e, Options{})
	if calls := m.env.TakeCalls(); len(calls) > 0 || planned.ProviderCalls > 0 || !planned.Contents.Counts.Empty() {
		m.t.Fatalf("the second plan after an apply calls %v", calls)
	}
}

func compare(t *testing.T, got []*change.Change, want map[change.Address]*change.Change) {
	t.Helper()
	text := func(c *change.Change) []byte {
		if c == nil {
			return nil
		}
		shown := *c
		shown.Sealed = ""
		if c.Action == change.NoOp {
			shown.Preconditions = nil // resources that were not evaluated have none
		}
		out, err := shown.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	seen := map[change.Address]bool{}
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
