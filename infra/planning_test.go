package infra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// place is a model with a World that follows it.
type place struct {
	*model
	engine *Engine
}

// newPlace has objects written and applied. Each is "name: spec"; a name that begins with data. is a data source's.
func newPlace(t *testing.T, objects ...string) *place {
	t.Helper()
	s := newStand()
	p := &place{model: newModel(t, s), engine: s.engine(t, nil)}
	p.write(objects...)
	p.applyAll()
	s.took()
	return p
}

func (p *place) write(objects ...string) {
	for _, text := range objects {
		name, spec, _ := strings.Cut(text, ": ")
		ref := thing(name)
		if data, is := strings.CutPrefix(name, "data."); is {
			ref = image(data)
		}
		p.version++
		p.objects[ref] = written(ref, int64(p.version), spec)
		p.engine.World.SetObject(p.objects[ref])
	}
}

func (p *place) delete(name string, waits bool) {
	ref := thing(name)
	if waits {
		o := *p.objects[ref]
		o.Deleting, o.Held, o.ResourceVersion = true, true, o.ResourceVersion+"d"
		p.objects[ref] = &o
		p.engine.World.SetObject(&o)
		return
	}
	delete(p.objects, ref)
	p.engine.World.RemoveObject(ref)
}

func (p *place) state(name string, change func(*State)) {
	p.version++
	s := *p.states[thing(name)]
	current := *s.Spec.Current
	s.Spec.Current, s.ResourceVersion = &current, fmt.Sprint("s", p.version)
	change(&s)
	p.states[s.Ref] = &s
	p.engine.World.SetState(&s)
}

func (p *place) applyAll() {
	p.t.Helper()
	planned, store := planOf(p.t, p.engine, Planning{})
	if len(planned.Problems) > 0 {
		p.t.Fatalf("%+v", planned.Problems)
	}
	changes, sealed := store.changes(p.t, planned, testSalt)
	p.apply(changes, sealed, true)
	for _, s := range p.states {
		p.engine.World.SetState(s)
	}
}

func (p *place) want(what Planning, want ...string) *Planned {
	p.t.Helper()
	planned, store := planOf(p.t, p.engine, what)
	if got := actions(p.t, planned, store); got != strings.Join(want, "\n") {
		p.t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	return planned
}

const threeSpecs = `a: {"content": "one"}|b: {"content": "${demo_thing[\"a\"].id}"}|c: {"content": "of ${demo_thing.b.id}"}`

func threeInARow() []string { return strings.Split(threeSpecs, "|") }

func TestFirstPlan(t *testing.T) {
	s := newStand()
	p := &place{model: newModel(t, s), engine: s.engine(t, nil)}
	p.write(append(threeInARow(), `data.i: {"filter": "x"}`, `d: {"content": "${data.demo_image[\"i\"].id}"}`)...)
	planned := p.want(Planning{}, `create demo_thing["a"]`, `create demo_thing["b"]`, `create demo_thing["c"]`, `create demo_thing["d"]`)
	if planned.Contents.Counts.Changes != 5 || len(planned.Read) != 1 || planned.NotPlanned != 0 || planned.Calls != len(s.took()) {
		t.Errorf("%+v", planned)
	}
}

// TestWhereValuesComeFrom: each difference names its own references, also below keys that look like numbers.
func TestWhereValuesComeFrom(t *testing.T) {
	labelled := func(a, b string) string {
		return fmt.Sprintf(`b: {"labels": {"80": "%s of ${demo_thing.a.id}", "web": "%s of ${demo_thing.c.id}", "x": "%s"}}`, a, b, a)
	}
	p := newPlace(t, `a: {}`, `c: {}`, labelled("one", "two"))
	p.write(labelled("1", "2"))
	planned, store := planOf(t, p.engine, Planning{})
	changes, _ := store.changes(t, planned, testSalt)
	var got []string
	for _, change := range changes {
		for _, f := range change.Fields {
			got = append(got, f.Path+" "+strings.Join(f.From, " and "))
		}
	}
	want := []string{`labels["80"] 1 of ${demo_thing.a.id}`, `labels["web"] 2 of ${demo_thing.c.id}`, `labels["x"] `}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// What is settled costs no call, whether its state says so or an earlier plan found out.
func TestNothingIsAskedOfWhatIsSettled(t *testing.T) {
	p := newPlace(t, append(threeInARow(), `data.i: {"filter": "x"}`, `d: {"content": "${data.demo_image[\"i\"].id}"}`)...)
	for range 2 {
		if planned := p.want(Planning{}); planned.Calls != 0 || planned.Contents.Counts.NoOp != 5 {
			t.Errorf("%+v asks %v", planned.Contents.Counts, p.stand.took())
		}
	}
	p.state("b", func(s *State) { s.Spec.Settled = "" })
	if planned := p.want(Planning{}); planned.Calls != 3 {
		t.Errorf("of one whose state does not say so it asks %v", p.stand.took())
	}
	if planned := p.want(Planning{}); planned.Calls != 0 {
		t.Errorf("the next plan asks %v", p.stand.took())
	}
	p.state("b", func(*State) {})
	if planned := p.want(Planning{}); planned.Calls != 3 {
		t.Errorf("of another state it asks %v", p.stand.took())
	}
	p.stand.opened = "c2"
	if planned := p.want(Planning{}); planned.Calls != 4*3+2 {
		t.Errorf("of another configuration it asks %v", p.stand.took())
	}
	p.stand.revision = "r2"
	p.engine.World.KindsChanged()
	if planned := p.want(Planning{}); planned.Calls != 4*3+2 {
		t.Errorf("of another version it asks %v", p.stand.took())
	}
	if planned := p.want(Planning{}); planned.Calls != 0 {
		t.Errorf("the next plan asks %v", p.stand.took())
	}
}

// One change is looked at with what uses it, and what that changes.
func TestOneChange(t *testing.T) {
	p := newPlace(t, append(threeInARow(), `other: {}`)...)
	p.write(`a: {"content": "two"}`)
	p.want(Planning{}, `update demo_thing["a"]`)
	p.write(`a: {"content": "one", "zone": "z"}`)
	p.want(Planning{}, `replace demo_thing["a"] (CannotUpdate)`, `update demo_thing["b"]`)
	p.write(threeInARow()[0])
	p.stand.took()
	if planned := p.want(Planning{}); planned.Calls != 0 {
		t.Errorf("what was taken back asks %v", p.stand.took())
	}
}

// Secrets and objects of Kubernetes change without a word: what comes from them is evaluated each time.
func TestWhatChangesUnseen(t *testing.T) {
	s := newStand()
	s.secrets["db/pw"] = "hunter2"
	s.objects["web"] = cty.ObjectVal(map[string]cty.Value{"replicas": cty.NumberIntVal(2)})
	p := &place{model: newModel(t, s), engine: s.engine(t, nil)}
	p.write(`a: {"password": {"secretKeyRef": {"name": "db", "key": "pw"}}}`, `b: {"content": "${k8s.Deployment[\"web\"].replicas}"}`)
	p.applyAll()
	p.want(Planning{})
	if planned := p.want(Planning{}); planned.Calls != 0 {
		t.Error("it is asked, though nothing changed")
	}
	s.secrets["db/pw"] = "hunter3"
	s.objects["web"] = cty.ObjectVal(map[string]cty.Value{"replicas": cty.NumberIntVal(3)})
	p.want(Planning{}, `update demo_thing["a"]`, `update demo_thing["b"]`)
}

func TestScope(t *testing.T) {
	p := newPlace(t, append(threeInARow(), `other: {}`)...)
	p.write(`a: {"content": "x"}`, `b: {"content": "${demo_thing[\"a\"].id}", "size": 99}`, `c: {"content": "x"}`, `other: {"content": "x"}`)
	p.want(Planning{Targets: []reference.Ref{thing("b")}}, `update demo_thing["a"]`, `update demo_thing["b"]`)
	p.want(Planning{Exclude: []reference.Ref{thing("a")}}, `update demo_thing["c"]`, `update demo_thing["other"]`)
	p.want(Planning{Targets: []reference.Ref{thing("nobody"), thing("c")}}, `update demo_thing["c"]`,
		`! Thing.demo.providers.atoll.dev/nobody : it was named to be planned, and there is nothing of that name in the namespace "shop": correct the name`)
	labelled := *p.objects[thing("c")]
	labelled.Labels = map[string]string{"tier": "web"}
	p.engine.World.SetObject(&labelled)
	p.want(Planning{Selector: labels.SelectorFromSet(labels.Set{"tier": "web"})}, `update demo_thing["c"]`)

	// To delete one is to delete first what was made from it.
	p = newPlace(t, threeInARow()...)
	for _, name := range []string{"a", "b", "c"} {
		p.delete(name, name != "a")
	}
	p.want(Planning{Targets: []reference.Ref{thing("b")}}, `delete demo_thing["b"] (ObjectDeleted)`, `delete demo_thing["c"] (ObjectDeleted)`)
	p.want(Planning{Exclude: []reference.Ref{thing("b")}}, `delete demo_thing["c"] (ObjectDeleted)`)
	p.want(Planning{}, `delete demo_thing["a"] (NotWritten)`, `delete demo_thing["b"] (ObjectDeleted)`, `delete demo_thing["c"] (ObjectDeleted)`)
}

func TestModes(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	p.write(`new: {}`, `a: {"content": "two"}`)
	p.want(Planning{Mode: plan.Destroy}, `delete demo_thing["a"] (DestroyAll)`, `delete demo_thing["b"] (DestroyAll)`, `delete demo_thing["c"] (DestroyAll)`)
	p.stand.drifted["id-1"] = "somebody else's"
	planned := p.want(Planning{Mode: plan.RefreshOnly}, `no-op demo_thing["a"]`)
	if len(planned.Drifted) != 1 || len(planned.Seen) != 2 || planned.Contents.Counts.Drift != 1 {
		t.Errorf("%+v", planned)
	}
	p.write(threeInARow()[0])
	p.want(Planning{Refresh: true}, `update demo_thing["a"]`, `create demo_thing["new"]`)
	p.want(Planning{Replace: []reference.Ref{thing("b")}}, `replace demo_thing["b"] (Requested)`, `update demo_thing["c"]`, `create demo_thing["new"]`)
}

func TestLifecycle(t *testing.T) {
	p := newPlace(t, `a: {"zone": "x"}`, `b: {"content": "${demo_thing[\"a\"].id}", "lifecycle": {"create_before_destroy": true}}`,
		`c: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"a\"].id"]}}`, `d: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"e\"]"]}}`, `e: {}`,
		`f: {"lifecycle": {"prevent_destroy": true}}`)
	p.write(`a: {"zone": "y"}`, `e: {"content": "x"}`)
	p.want(Planning{}, `replace demo_thing["a"] (CannotUpdate) first`, `update demo_thing["b"]`,
		`replace demo_thing["c"] (Triggerednamespace["shop"].demo_thing["a"].id: replace)`,
		`replace demo_thing["d"] (Triggerednamespace["shop"].demo_thing["e"]: update)`, `update demo_thing["e"]`)
	p.delete("f", true)
	p.want(Planning{Targets: []reference.Ref{thing("f")}}, `! Thing.demo.providers.atoll.dev/f : lifecycle.prevent_destroy forbids it; set lifecycle.prevent_destroy to false, or leave the object out of the plan`)
	forgotten := *p.objects[thing("f")]
	forgotten.Forget, forgotten.ResourceVersion = true, "forgotten"
	p.engine.World.SetObject(&forgotten)
	p.want(Planning{Targets: []reference.Ref{thing("f")}}, `forget demo_thing["f"]`)
}

// TestTriggeredByWhatIsGone: what is to be created again, because somebody took it away, triggers like what is replaced.
func TestTriggeredByWhatIsGone(t *testing.T) {
	p := newPlace(t, `d: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"e\"]"]}}`, `e: {}`)
	var is struct{ ID string }
	if err := json.Unmarshal(p.states[thing("e")].Spec.Current.Value, &is); err != nil {
		t.Fatal(err)
	}
	p.stand.gone[is.ID] = true
	p.want(Planning{Refresh: true}, `replace demo_thing["d"] (Triggerednamespace["shop"].demo_thing["e"]: create)`, `create demo_thing["e"]`)
}

func TestDeposedAndTainted(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	p.state("b", func(s *State) {
		s.Spec.Deposed = []v1alpha1.DeposedResource{{Key: "k1", ResourceValue: *s.Spec.Current}}
	})
	p.want(Planning{}, `delete demo_thing["b"] (deposed k1) (LeftOver)`)
	p.state("b", func(s *State) { s.Spec.Deposed, s.Spec.Current.Tainted = nil, true })
	p.want(Planning{}, `replace demo_thing["b"] (Tainted)`, `update demo_thing["c"]`)
}

func TestPending(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	p.state("b", func(s *State) {
		s.Spec.Pending = &v1alpha1.PendingChange{Apply: "first", ApplyUID: "u1", Action: "update"}
	})
	planned := p.want(Planning{}, `! Thing.demo.providers.atoll.dev/b : Apply "first" is about to update it since 0001-01-01T00:00:00Z, and has not ended: wait for it, or cancel it, and plan again`)
	if planned.NotPlanned != 2 {
		t.Errorf("%d are not planned", planned.NotPlanned)
	}
	ended := func(uid string) bool { return uid == "u1" }
	p.stand.drifted["id-2"] = "half done"
	if planned := p.want(Planning{Ended: ended}, `update demo_thing["b"]`); len(planned.Drifted) != 1 {
		t.Errorf("%+v", planned)
	}
	p.state("b", func(s *State) { s.Spec.Pending.Action, s.Spec.Current = "create", nil })
	p.want(Planning{Ended: ended}, `! Thing.demo.providers.atoll.dev/b : Apply "first" began to create it and ended without knowing whether the provider did: look for it there; `+
		`if it exists, set the annotation infra.atoll.dev/import-id to its ID, and if not, delete the ResourceState "things.demo.b"; then plan again`)
	imported := *p.objects[thing("b")]
	imported.ImportID, imported.ResourceVersion = "found", "imported"
	p.engine.World.SetObject(&imported)
	p.want(Planning{Ended: ended}, `update demo_thing["b"]`, `update demo_thing["c"]`)
}

// What is taken for written changes the plan, and nothing else.
func TestWritten(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	what := Planning{Written: []*Object{
		written(thing("a"), 0, `{"zone": "z"}`), written(thing("aa"), 0, `{"content": "${demo_thing[\"z\"].id}"}`), written(thing("z"), 0, `{"content": "${data.demo_image.i.id}"}`),
		written(image("i"), 0, `{"filter": "y"}`),
	}}
	p.want(what, `replace demo_thing["a"] (CannotUpdate)`, `create demo_thing["aa"]`, `update demo_thing["b"]`, `create demo_thing["z"]`)
	p.stand.took()
	if planned := p.want(Planning{}); planned.Calls != 0 || planned.Contents.Counts.Changes != 3 {
		t.Errorf("%+v asks %v", planned.Contents.Counts, p.stand.took())
	}
	elsewhere := written(reference.Ref{Type: "demo_thing", Namespace: "other", Name: "x"}, 0, `{}`)
	if _, err := p.engine.Plan(t.Context(), Planning{Namespace: testNamespace, Salt: testSalt, Written: []*Object{elsewhere}}, newChunks()); err == nil {
		t.Error("an object of another namespace is planned")
	}
}

func TestOtherNamespaces(t *testing.T) {
	p := newPlace(t, `a: {}`)
	p.write(`b: {"content": "${namespace[\"net\"].demo_thing[\"shared\"].id}"}`)
	const who = `! Thing.demo.providers.atoll.dev/b spec.content: namespace["net"].demo_thing["shared"] `
	p.want(Planning{}, who+"is not written: write it, or correct the reference")
	shared := reference.Ref{Type: "demo_thing", Namespace: "net", Name: "shared"}
	p.engine.World.SetObject(written(shared, 1, `{}`))
	p.want(Planning{}, who+"is of another namespace, and has not been applied yet: apply it first")
	state := *p.states[thing("a")]
	state.Ref = shared
	p.engine.World.SetState(&state)
	p.want(Planning{}, `create demo_thing["b"]`)
}

// Each thing that a user can get wrong is told with its field and the remedy; what depends on it is not planned, and all else is.
func TestProblems(t *testing.T) {
	p := newPlace(t, `fine: {}`)
	cases := []struct{ object, want string }{
		{`x: {"content": "${demo_thing[\"nobody\"].id}"}`, `spec.content: namespace["shop"].demo_thing["nobody"] is not written: write it, or correct the reference`},
		{`x: {"content": "${nowhere_thing[\"nobody\"].id}"}`, `spec.content: namespace["shop"].nowhere_thing["nobody"] is of a type that no installed Provider serves: correct the reference, or install the Provider`},
		{`x: {"depends_on": ["demo_thing[\"nobody\"]"]}`, `spec.depends_on[0]: namespace["shop"].demo_thing["nobody"] is not written: write it, or correct the reference`},
		{`x: {"depends_on": ["k8s.Pod[\"p\"]"]}`, `spec.depends_on: namespace["shop"].k8s.Pod["p"] is no resource or data source, and there is no change of it to wait for: leave it out`},
		{`x: {"content": "${demo_thing[}"}`, `spec.content: ${demo_thing[`},
		{`x: {"size": "${demo_thing[\"fine\"].nothing}"}`, `spec.size: ${demo_thing["fine"].nothing}: `},
		{`x: {"contents": "typo"}`, `spec.contents: `},
		{`x: {"content": "${demo_thing[\"x\"].id}"}`, `: it refers to itself in a circle: namespace["shop"].demo_thing["x"] → namespace["shop"].demo_thing["x"]; take one of these references out`},
		{`x: {"provider": "missing"}`, `spec.provider: there is no ProviderConfig "missing": make it, or name another`},
		{`x: {"password": {"secretKeyRef": {"name": "none", "key": "k"}}}`, `spec.password.secretKeyRef: there is no key "k" in a Secret "none" of namespace "shop"`},
		{`x: []`, `spec: is not an object`},
	}
	for _, c := range cases {
		p.write(c.object, `after: {"content": "${demo_thing[\"x\"].id}"}`, `new: {}`)
		planned, store := planOf(t, p.engine, Planning{})
		got := actions(t, planned, store)
		if !strings.HasPrefix(got, "create demo_thing[\"new\"]\n! Thing.demo.providers.atoll.dev/x "+c.want) || planned.NotPlanned != 2 || len(planned.Problems) != 1 {
			t.Errorf("%s:\n%s\nwant\n%s\n%d not planned", c.object, got, c.want, planned.NotPlanned)
		}
	}
}

func TestCircle(t *testing.T) {
	p := newPlace(t, `a: {}`)
	p.write(`b: {"content": "${demo_thing[\"c\"].id}"}`, `c: {"content": "${demo_thing[\"b\"].id}"}`, `d: {"content": "${demo_thing[\"b\"].id}"}`)
	const text = `it refers to itself in a circle: namespace["shop"].demo_thing["b"] → namespace["shop"].demo_thing["c"] → namespace["shop"].demo_thing["b"]; take one of these references out`
	planned := p.want(Planning{}, `! Thing.demo.providers.atoll.dev/b : `+text, `! Thing.demo.providers.atoll.dev/c : `+text)
	if planned.NotPlanned != 3 {
		t.Errorf("%d not planned", planned.NotPlanned)
	}
	p.write(`c: {}`)
	p.want(Planning{}, `create demo_thing["b"]`, `create demo_thing["c"]`, `create demo_thing["d"]`)
}

func TestWhatNobodyServes(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	p.delete("c", false)
	p.stand.unserved["demo_thing"] = true
	p.engine.World.KindsChanged()
	planned := p.want(Planning{},
		`! Thing.demo.providers.atoll.dev/a : no installed Provider serves the type demo_thing: install one that has it, or activate the type`,
		`! Thing.demo.providers.atoll.dev/c : its object is gone, and no installed Provider serves the type demo_thing any more: install it again to delete the resource, or delete the ResourceState "things.demo.c" to forget it`)
	if planned.NotPlanned != 3 {
		t.Errorf("%d not planned", planned.NotPlanned)
	}
}

// What is removed waits for what was made from it; and if that cannot be planned, it stays.
func TestRemovalWaits(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	p.delete("a", false)
	p.want(Planning{}, `! Thing.demo.providers.atoll.dev/b spec.content: namespace["shop"].demo_thing["a"] is no longer written, and will be deleted: take the reference out, or write it again`)
	p.write(`b: {"content": "${demo_thing[\"nobody\"].id}"}`)
	if planned, _ := planOf(t, p.engine, Planning{}); planned.NotPlanned != 3 {
		t.Errorf("%d are not planned: what is in use is deleted", planned.NotPlanned)
	}
	p.write(`b: {}`)
	p.want(Planning{}, `delete demo_thing["a"] (NotWritten)`, `update demo_thing["b"]`)
}

// No secret stands in a problem, though the provider quotes it.
func TestProblemsHaveNoSecrets(t *testing.T) {
	s := newStand()
	s.secrets["db/pw"] = "tell-nobody"
	p := &place{model: newModel(t, s), engine: s.engine(t, nil)}
	p.write(`a: {"content": "c", "password": {"secretKeyRef": {"name": "db", "key": "pw"}}}`)
	s.validate = func(config cty.Value) contract.Diagnostics {
		return contract.Diagnostics{{Summary: "Bad password", Detail: config.GetAttr("password").AsString() + " is too short", Attribute: cty.GetAttrPath("password")}}
	}
	p.want(Planning{}, `! Thing.demo.providers.atoll.dev/a spec.password: the provider refuses it: Bad password: (sensitive) is too short; change its spec`)
}

func TestPlanFails(t *testing.T) {
	p := newPlace(t, threeInARow()...)
	what := Planning{Namespace: testNamespace, Mode: plan.Normal}
	if _, err := p.engine.Plan(t.Context(), what, newChunks()); err == nil || !strings.Contains(err.Error(), "salt") {
		t.Errorf("without a salt: %v", err)
	}
	what.Salt = testSalt
	full := newChunks()
	full.fails = errors.New("the disk is full")
	if _, err := p.engine.Plan(t.Context(), what, full); !errors.Is(err, full.fails) {
		t.Errorf("where nothing can be stored: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.stand.says = func(contract.PlanRequest) error { cancel(); return ctx.Err() }
	p.write(`a: {"content": "other"}`)
	if _, err := p.engine.Plan(ctx, what, newChunks()); !errors.Is(err, context.Canceled) {
		t.Errorf("after it was ended: %v", err)
	}
}

// No more are looked at at a time than a plan wants.
func TestNoMoreAtATime(t *testing.T) {
	s := newStand()
	p := &place{model: newModel(t, s), engine: s.engine(t, nil)}
	for i := range 50 {
		p.write(fmt.Sprintf("n%d: {}", i))
	}
	var now atomic.Int64
	s.says = func(contract.PlanRequest) error {
		defer now.Add(-1)
		if at := now.Add(1); at > 2 {
			t.Errorf("%d at a time", at)
		}
		runtime.Gosched()
		return nil
	}
	if planned, _ := planOf(t, p.engine, Planning{Parallelism: 2}); planned.Contents.Counts.Create != 50 {
		t.Errorf("%+v", planned.Contents.Counts)
	}
}

// Many are decided at a time, and progress is told at the end in any case.
func TestManyAtATime(t *testing.T) {
	s := newStand()
	p := &place{model: newModel(t, s), engine: s.engine(t, nil)}
	for i := range 300 {
		p.write(fmt.Sprintf(`n%d: {"content": "${demo_thing[\"n%d\"].id}"}`, i, i/2+1000), fmt.Sprintf(`n%d: {}`, i/2+1000))
	}
	var told []int
	planned, _ := planOf(t, p.engine, Planning{Progress: func(done, total int) { told = append(told, done, total) }})
	if planned.Contents.Counts.Create != 450 || len(told) < 2 || told[len(told)-2] != 450 || told[len(told)-1] != 450 {
		t.Errorf("%+v, progress %v", planned.Contents.Counts, told)
	}
}
