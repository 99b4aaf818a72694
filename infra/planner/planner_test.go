package planner

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
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/grants"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// planTest is a model with an Inventory that follows it.
type planTest struct {
	*model
	engine *Planner
}

// newPlanTest writes and applies objects. Each is "name: spec"; the prefix data. marks a data
// source.
func newPlanTest(t *testing.T, objects ...string) *planTest {
	t.Helper()
	s := enginetest.NewEnv()
	p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
	p.write(objects...)
	p.applyAll()
	s.TakeCalls()
	return p
}

func (p *planTest) write(objects ...string) {
	for _, text := range objects {
		name, spec, _ := strings.Cut(text, ": ")
		ref := enginetest.ThingRef(name)
		if data, is := strings.CutPrefix(name, "data."); is {
			ref = enginetest.ImageRef(data)
		}
		p.version++
		p.objects[ref] = enginetest.NewObject(ref, int64(p.version), spec)
		p.engine.Inventory.SetObject(p.objects[ref])
	}
}

func (p *planTest) delete(name string, waits bool) {
	ref := enginetest.ThingRef(name)
	if waits {
		o := *p.objects[ref]
		o.Deleting, o.HasFinalizer, o.ResourceVersion = true, true, o.ResourceVersion+"d"
		p.objects[ref] = &o
		p.engine.Inventory.SetObject(&o)
		return
	}
	delete(p.objects, ref)
	p.engine.Inventory.RemoveObject(ref)
}

func (p *planTest) state(name string, change func(*infra.State)) {
	p.version++
	s := *p.states[enginetest.ThingRef(name)]
	current := *s.Spec.Current
	s.Spec.Current, s.ResourceVersion = &current, fmt.Sprint("s", p.version)
	change(&s)
	p.states[s.Ref] = &s
	p.engine.Inventory.SetState(&s)
}

func (p *planTest) applyAll() {
	p.t.Helper()
	planned, store := mustPlan(p.t, p.engine, Options{})
	if len(planned.Problems) > 0 {
		p.t.Fatalf("%+v", planned.Problems)
	}
	changes, sealed := store.Changes(p.t, planned.Contents, enginetest.Salt())
	p.apply(changes, sealed, true)
	for _, s := range p.states {
		p.engine.Inventory.SetState(s)
	}
}

func (p *planTest) want(opts Options, want ...string) *Result {
	p.t.Helper()
	planned, store := mustPlan(p.t, p.engine, opts)
	if got := actions(p.t, planned, store); got != strings.Join(want, "\n") {
		p.t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	return planned
}

const chainSpecs = `a: {"content": "one"}|b: {"content": "${demo_thing[\"a\"].id}"}|c: {"content": "of ${demo_thing.b.id}"}`

func chainOfThree() []string { return strings.Split(chainSpecs, "|") }

func TestFirstPlan(t *testing.T) {
	s := enginetest.NewEnv()
	p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
	p.write(append(chainOfThree(), `data.i: {"filter": "x"}`, `d: {"content": "${data.demo_image[\"i\"].id}"}`)...)
	planned := p.want(Options{}, `create demo_thing["a"]`, `create demo_thing["b"]`, `create demo_thing["c"]`, `create demo_thing["d"]`)
	if planned.Contents.Counts.Changes != 5 || len(planned.DataReads) != 1 || planned.NotPlanned != 0 || planned.ProviderCalls != len(s.TakeCalls()) {
		t.Errorf("%+v", planned)
	}
}

// TestOriginsOfDifferences checks that each difference names its own references, also below map
// keys that look like numbers.
func TestOriginsOfDifferences(t *testing.T) {
	labelled := func(a, b string) string {
		return fmt.Sprintf(`b: {"labels": {"80": "%s of ${demo_thing.a.id}", "web": "%s of ${demo_thing.c.id}", "x": "%s"}}`, a, b, a)
	}
	p := newPlanTest(t, `a: {}`, `c: {}`, labelled("one", "two"))
	p.write(labelled("1", "2"))
	planned, store := mustPlan(t, p.engine, Options{})
	changes, _ := store.Changes(t, planned.Contents, enginetest.Salt())
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

// TestSettledResourcesCostNoCalls: a resource is settled by its state or by the memo of a plan.
func TestSettledResourcesCostNoCalls(t *testing.T) {
	p := newPlanTest(t, append(chainOfThree(), `data.i: {"filter": "x"}`, `d: {"content": "${data.demo_image[\"i\"].id}"}`)...)
	for range 2 {
		if planned := p.want(Options{}); planned.ProviderCalls != 0 || planned.Contents.Counts.NoOp != 5 {
			t.Errorf("%+v asks %v", planned.Contents.Counts, p.env.TakeCalls())
		}
	}
	p.state("b", func(s *infra.State) { s.Spec.Settled = "" })
	if planned := p.want(Options{}); planned.ProviderCalls != 3 {
		t.Errorf("without settled in the state it calls %v", p.env.TakeCalls())
	}
	if planned := p.want(Options{}); planned.ProviderCalls != 0 {
		t.Errorf("the next plan asks %v", p.env.TakeCalls())
	}
	p.state("b", func(*infra.State) {})
	if planned := p.want(Options{}); planned.ProviderCalls != 3 {
		t.Errorf("with another state version it calls %v", p.env.TakeCalls())
	}
	p.env.ConfigRevision = "c2"
	if planned := p.want(Options{}); planned.ProviderCalls != 4*3+2 {
		t.Errorf("with another configuration it calls %v", p.env.TakeCalls())
	}
	p.env.Revision = "r2"
	p.engine.Inventory.KindsChanged()
	if planned := p.want(Options{}); planned.ProviderCalls != 4*3+2 {
		t.Errorf("with another provider version it calls %v", p.env.TakeCalls())
	}
	if planned := p.want(Options{}); planned.ProviderCalls != 0 {
		t.Errorf("the next plan asks %v", p.env.TakeCalls())
	}
}

// TestOneChange plans a change with its dependents.
func TestOneChange(t *testing.T) {
	p := newPlanTest(t, append(chainOfThree(), `other: {}`)...)
	p.write(`a: {"content": "two"}`)
	p.want(Options{}, `update demo_thing["a"]`)
	p.write(`a: {"content": "one", "zone": "z"}`)
	p.want(Options{}, `replace demo_thing["a"] (CannotUpdate)`, `update demo_thing["b"]`)
	p.write(chainOfThree()[0])
	p.env.TakeCalls()
	if planned := p.want(Options{}); planned.ProviderCalls != 0 {
		t.Errorf("after the revert it calls %v", p.env.TakeCalls())
	}
}

// TestUnwatchedInputs: Secrets and Kubernetes objects change without notice, so that specs that use
// them are evaluated every time.
func TestUnwatchedInputs(t *testing.T) {
	s := enginetest.NewEnv()
	s.Secrets["db/pw"] = "hunter2"
	s.Objects["web"] = cty.ObjectVal(map[string]cty.Value{"replicas": cty.NumberIntVal(2)})
	p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
	p.write(`a: {"password": {"secretKeyRef": {"name": "db", "key": "pw"}}}`, `b: {"content": "${k8s.Deployment[\"web\"].replicas}"}`)
	p.applyAll()
	p.want(Options{})
	if planned := p.want(Options{}); planned.ProviderCalls != 0 {
		t.Error("the provider was called, though nothing changed")
	}
	s.Secrets["db/pw"] = "hunter3"
	s.Objects["web"] = cty.ObjectVal(map[string]cty.Value{"replicas": cty.NumberIntVal(3)})
	p.want(Options{}, `update demo_thing["a"]`, `update demo_thing["b"]`)
}

func TestScope(t *testing.T) {
	p := newPlanTest(t, append(chainOfThree(), `other: {}`)...)
	p.write(`a: {"content": "x"}`, `b: {"content": "${demo_thing[\"a\"].id}", "size": 99}`, `c: {"content": "x"}`, `other: {"content": "x"}`)
	p.want(Options{Targets: []expr.Ref{enginetest.ThingRef("b")}}, `update demo_thing["a"]`, `update demo_thing["b"]`)
	p.want(Options{Exclude: []expr.Ref{enginetest.ThingRef("a")}}, `update demo_thing["c"]`, `update demo_thing["other"]`)
	p.want(Options{Targets: []expr.Ref{enginetest.ThingRef("nobody"), enginetest.ThingRef("c")}}, `update demo_thing["c"]`,
		`! Thing.demo.providers.atoll.dev/nobody : listed in targets, but not found in namespace "shop": correct the name`)
	labelled := *p.objects[enginetest.ThingRef("c")]
	labelled.Labels = map[string]string{"tier": "web"}
	p.engine.Inventory.SetObject(&labelled)
	p.want(Options{Selector: labels.SelectorFromSet(labels.Set{"tier": "web"})}, `update demo_thing["c"]`)

	// Deleting a resource deletes its dependents first.
	p = newPlanTest(t, chainOfThree()...)
	for _, name := range []string{"a", "b", "c"} {
		p.delete(name, name != "a")
	}
	p.want(Options{Targets: []expr.Ref{enginetest.ThingRef("b")}}, `delete demo_thing["b"] (ObjectDeleted)`, `delete demo_thing["c"] (ObjectDeleted)`)
	p.want(Options{Exclude: []expr.Ref{enginetest.ThingRef("b")}}, `delete demo_thing["c"] (ObjectDeleted)`)
	p.want(Options{}, `delete demo_thing["a"] (NotWritten)`, `delete demo_thing["b"] (ObjectDeleted)`, `delete demo_thing["c"] (ObjectDeleted)`)
}

func TestModes(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	p.write(`new: {}`, `a: {"content": "two"}`)
	p.want(Options{Mode: change.Destroy}, `delete demo_thing["a"] (DestroyAll)`, `delete demo_thing["b"] (DestroyAll)`, `delete demo_thing["c"] (DestroyAll)`)
	p.env.Drifted["id-1"] = "changed outside"
	planned := p.want(Options{Mode: change.RefreshOnly}, `no-op demo_thing["a"]`)
	if len(planned.Drifted) != 1 || len(planned.InSync) != 2 || planned.Contents.Counts.Drift != 1 {
		t.Errorf("%+v", planned)
	}
	p.write(chainOfThree()[0])
	p.want(Options{Refresh: true}, `update demo_thing["a"]`, `create demo_thing["new"]`)
	p.want(Options{Replace: []expr.Ref{enginetest.ThingRef("b")}}, `replace demo_thing["b"] (Requested)`, `update demo_thing["c"]`, `create demo_thing["new"]`)
}

func TestLifecycle(t *testing.T) {
	p := newPlanTest(t, `a: {"zone": "x"}`, `b: {"content": "${demo_thing[\"a\"].id}", "lifecycle": {"create_before_destroy": true}}`,
		`c: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"a\"].id"]}}`, `d: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"e\"]"]}}`, `e: {}`,
		`f: {"lifecycle": {"prevent_destroy": true}}`)
	p.write(`a: {"zone": "y"}`, `e: {"content": "x"}`)
	p.want(Options{}, `replace demo_thing["a"] (CannotUpdate) first`, `update demo_thing["b"]`,
		`replace demo_thing["c"] (Triggerednamespace["shop"].demo_thing["a"].id: replace)`,
		`replace demo_thing["d"] (Triggerednamespace["shop"].demo_thing["e"]: update)`, `update demo_thing["e"]`)
	p.delete("f", true)
	p.want(Options{Targets: []expr.Ref{enginetest.ThingRef("f")}}, `! Thing.demo.providers.atoll.dev/f : the resource must not be destroyed: lifecycle.prevent_destroy is set; set lifecycle.prevent_destroy to false, or exclude the object from the plan`)
	forgotten := *p.objects[enginetest.ThingRef("f")]
	forgotten.Forget, forgotten.ResourceVersion = true, "forgotten"
	p.engine.Inventory.SetObject(&forgotten)
	p.want(Options{Targets: []expr.Ref{enginetest.ThingRef("f")}}, `forget demo_thing["f"]`)
}

// TestTriggersThatDoNotExist: an entry that could never trigger is an error that names it.
func TestTriggersThatDoNotExist(t *testing.T) {
	p := newPlanTest(t, `e: {}`)
	p.write(`d: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"e\"].id", "demo_thing[\"e\"].idd"]}}`)
	p.want(Options{}, `! Thing.demo.providers.atoll.dev/d spec.lifecycle.replace_triggered_by[1]: namespace["shop"].demo_thing["e"] has no "idd": it has content, id, labels, password, size, token, wo, zone`)
}

func TestMissingAttribute(t *testing.T) {
	ty := cty.Object(map[string]cty.Type{"id": cty.String, "tags": cty.Map(cty.String), "ports": cty.List(cty.Object(map[string]cty.Type{"n": cty.Number})), "any": cty.DynamicPseudoType})
	path := func(steps ...any) (out cty.Path) {
		for _, s := range steps {
			switch s := s.(type) {
			case string:
				out = append(out, cty.GetAttrStep{Name: s})
			case int:
				out = append(out, cty.IndexStep{Key: cty.NumberIntVal(int64(s))})
			}
		}
		return out
	}
	for want, p := range map[string]cty.Path{
		"":                                path("tags", "anything"),
		`x.ports[…] has no "m": it has n`: path("ports", 7, "m"),
		"x.ports is of type list of object, which has no such element": path("ports", "n"),
		"x.id is of type string, which has no such element":            path("id", 0),
	} {
		if got := missingAttribute("x", ty, p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, p := range []cty.Path{path("any", "x", 1), path("ports", 7, "n"), path("id")} {
		if got := missingAttribute("x", ty, p); got != "" {
			t.Errorf("%v: %s", p, got)
		}
	}
}

// TestTriggeredByRecreation: a resource that is created again, because it is gone, triggers like a
// replaced one.
func TestTriggeredByRecreation(t *testing.T) {
	p := newPlanTest(t, `d: {"lifecycle": {"replace_triggered_by": ["demo_thing[\"e\"]"]}}`, `e: {}`)
	var is struct{ ID string }
	if err := json.Unmarshal(p.states[enginetest.ThingRef("e")].Spec.Current.Value, &is); err != nil {
		t.Fatal(err)
	}
	p.env.Gone[is.ID] = true
	p.want(Options{Refresh: true}, `replace demo_thing["d"] (Triggerednamespace["shop"].demo_thing["e"]: create)`, `create demo_thing["e"]`)
}

func TestDeposedAndTainted(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	p.state("b", func(s *infra.State) {
		s.Spec.Deposed = []v1alpha1.DeposedResource{{Key: "k1", ResourceValue: *s.Spec.Current}}
	})
	p.want(Options{}, `delete demo_thing["b"] (deposed k1) (LeftOver)`)
	p.state("b", func(s *infra.State) { s.Spec.Deposed, s.Spec.Current.Tainted = nil, true })
	p.want(Options{}, `replace demo_thing["b"] (Tainted)`, `update demo_thing["c"]`)
}

func TestPending(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	p.state("b", func(s *infra.State) {
		s.Spec.Pending = &v1alpha1.PendingChange{Apply: "first", ApplyUID: "u1", Action: "update"}
	})
	planned := p.want(Options{}, `! Thing.demo.providers.atoll.dev/b : Apply "first" started to update it at 0001-01-01T00:00:00Z and has not ended: wait for the Apply or cancel it, then plan again`)
	if planned.NotPlanned != 2 {
		t.Errorf("%d are not planned", planned.NotPlanned)
	}
	ended := func(uid string) bool { return uid == "u1" }
	p.env.Drifted["id-2"] = "half done"
	if planned := p.want(Options{ApplyEnded: ended}, `update demo_thing["b"]`); len(planned.Drifted) != 1 {
		t.Errorf("%+v", planned)
	}
	p.state("b", func(s *infra.State) { s.Spec.Pending.Action, s.Spec.Current = "create", nil })
	p.want(Options{ApplyEnded: ended}, `! Thing.demo.providers.atoll.dev/b : Apply "first" started to create it and ended without an answer from the provider: check whether the resource exists; if it does, `+
		`set the annotation infra.atoll.dev/import-id to its ID; if not, delete ResourceState "things.demo.b"; then plan again`)
	imported := *p.objects[enginetest.ThingRef("b")]
	imported.ImportID, imported.ResourceVersion = "found", "imported"
	p.engine.Inventory.SetObject(&imported)
	p.want(Options{ApplyEnded: ended}, `update demo_thing["b"]`, `update demo_thing["c"]`)
}

// TestOverrides checks that overrides change the plan, and nothing else.
func TestOverrides(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	opts := Options{Overrides: []*infra.Object{
		enginetest.NewObject(enginetest.ThingRef("a"), 0, `{"zone": "z"}`), enginetest.NewObject(enginetest.ThingRef("aa"), 0, `{"content": "${demo_thing[\"z\"].id}"}`), enginetest.NewObject(enginetest.ThingRef("z"), 0, `{"content": "${data.demo_image.i.id}"}`),
		enginetest.NewObject(enginetest.ImageRef("i"), 0, `{"filter": "y"}`),
	}}
	p.want(opts, `replace demo_thing["a"] (CannotUpdate)`, `create demo_thing["aa"]`, `update demo_thing["b"]`, `create demo_thing["z"]`)
	p.env.TakeCalls()
	if planned := p.want(Options{}); planned.ProviderCalls != 0 || planned.Contents.Counts.Changes != 3 {
		t.Errorf("%+v asks %v", planned.Contents.Counts, p.env.TakeCalls())
	}
	elsewhere := enginetest.NewObject(expr.Ref{Type: "demo_thing", Namespace: "other", Name: "x"}, 0, `{}`)
	if _, err := p.engine.Plan(t.Context(), Options{Namespace: enginetest.Namespace, Salt: enginetest.Salt(), Overrides: []*infra.Object{elsewhere}}, enginetest.NewPlanStore()); err == nil {
		t.Error("an object of another namespace is planned")
	}
}

// TestOtherNamespaces checks that a resource of another namespace can be referred to as far as that grants it.
func TestOtherNamespaces(t *testing.T) {
	p := newPlanTest(t, `a: {}`)
	p.write(`b: {"content": "${namespace[\"net\"].demo_thing[\"shared\"].id}"}`)
	const field = `! Thing.demo.providers.atoll.dev/b spec.content: `
	const refused = field + `namespace net does not grant Thing.demo.providers.atoll.dev of namespace shop a reference to Thing.demo.providers.atoll.dev shared: ` +
		`create a ReferenceGrant (gateway.networking.k8s.io/v1beta1) in namespace net with spec ` +
		`{from: [{group: demo.providers.atoll.dev, kind: Thing, namespace: shop}], to: [{group: demo.providers.atoll.dev, kind: Thing, name: shared}]}`
	const prefix = field + `namespace["net"].demo_thing["shared"] `
	grant := func(name string) {
		p.env.Grants["net"] = []grants.Spec{{
			From: []grants.From{{Group: "demo.providers.atoll.dev", Kind: "Thing", Namespace: "shop"}},
			To:   []grants.To{{Group: "demo.providers.atoll.dev", Kind: "Thing", Name: name}}}}
	}
	p.want(Options{}, refused) // also if it does not exist
	grant("")
	p.want(Options{}, prefix+"does not exist: create it, or correct the reference")
	shared := expr.Ref{Type: "demo_thing", Namespace: "net", Name: "shared"}
	p.engine.Inventory.SetObject(enginetest.NewObject(shared, 1, `{}`))
	p.want(Options{}, prefix+"is in another namespace and has not been applied yet: apply it first")
	state := *p.states[enginetest.ThingRef("a")]
	state.Ref = shared
	p.engine.Inventory.SetState(&state)
	p.want(Options{}, `create demo_thing["b"]`)
	delete(p.env.Grants, "net")
	p.want(Options{}, refused)
	p.write(`b: {"depends_on": ["namespace[\"net\"].demo_thing[\"shared\"]"]}`)
	p.want(Options{}, strings.Replace(refused, "spec.content", "spec.depends_on[0]", 1))
}

// TestWithdrawnGrant checks that a plan fails for a resource whose grant is gone, although nothing else has
// changed, and deletes nothing.
func TestWithdrawnGrant(t *testing.T) {
	p := newPlanTest(t, `a: {}`, `b: {"content": "x"}`)
	shared := expr.Ref{Type: "demo_thing", Namespace: "net", Name: "shared"}
	state := *p.states[enginetest.ThingRef("a")]
	state.Ref = shared
	p.engine.Inventory.SetObject(enginetest.NewObject(shared, 1, `{}`))
	p.engine.Inventory.SetState(&state)
	p.env.Grants["net"] = []grants.Spec{{
		From: []grants.From{{Group: "demo.providers.atoll.dev", Kind: "Thing", Namespace: "shop"}},
		To:   []grants.To{{Group: "demo.providers.atoll.dev", Kind: "Thing"}}}}
	p.write(`b: {"content": "x", "depends_on": ["namespace[\"net\"].demo_thing[\"shared\"]"]}`)
	p.want(Options{})
	p.want(Options{})
	delete(p.env.Grants, "net")
	planned, _ := mustPlan(t, p.engine, Options{})
	if len(planned.Problems) != 1 || !strings.Contains(planned.Problems[0].Message, "namespace net does not grant") || planned.Contents.Counts.Delete != 0 {
		t.Errorf("problems %v, changes %+v", planned.Problems, planned.Contents.Counts)
	}
}

// TestProblems checks that each user error gives a problem with its field and remedy. Its
// dependents are not planned, and everything else is.
func TestProblems(t *testing.T) {
	p := newPlanTest(t, `fine: {}`)
	cases := []struct{ object, want string }{
		{`x: {"content": "${demo_thing[\"nobody\"].id}"}`, `spec.content: namespace["shop"].demo_thing["nobody"] does not exist: create it, or correct the reference`},
		{`x: {"content": "${nowhere_thing[\"nobody\"].id}"}`, `spec.content: namespace["shop"].nowhere_thing["nobody"] has a type that no installed Provider serves: correct the reference, or install the Provider`},
		{`x: {"depends_on": ["demo_thing[\"nobody\"]"]}`, `spec.depends_on[0]: namespace["shop"].demo_thing["nobody"] does not exist: create it, or correct the reference`},
		{`x: {"depends_on": ["k8s.Pod[\"p\"]"]}`, `spec.depends_on: namespace["shop"].k8s.Pod["p"] is not a resource or data source, so there is no change to wait for: remove it`},
		{`x: {"content": "${demo_thing[}"}`, `spec.content: ${demo_thing[`},
		{`x: {"size": "${demo_thing[\"fine\"].nothing}"}`, `spec.size: ${demo_thing["fine"].nothing}: `},
		{`x: {"contents": "typo"}`, `spec.contents: `},
		{`x: {"content": "${demo_thing[\"x\"].id}"}`, `: reference cycle: namespace["shop"].demo_thing["x"] → namespace["shop"].demo_thing["x"]: remove one of these references`},
		{`x: {"provider": "missing"}`, `spec.provider: there is no ProviderConfig "missing": make it, or name another`},
		{`x: {"password": {"secretKeyRef": {"name": "none", "key": "k"}}}`, `spec.password.secretKeyRef: there is no key "k" in a Secret "none" of namespace "shop"`},
		{`x: []`, `spec: must be an object`},
	}
	for _, c := range cases {
		p.write(c.object, `after: {"content": "${demo_thing[\"x\"].id}"}`, `new: {}`)
		planned, store := mustPlan(t, p.engine, Options{})
		got := actions(t, planned, store)
		if !strings.HasPrefix(got, "create demo_thing[\"new\"]\n! Thing.demo.providers.atoll.dev/x "+c.want) || planned.NotPlanned != 2 || len(planned.Problems) != 1 {
			t.Errorf("%s:\n%s\nwant\n%s\n%d not planned", c.object, got, c.want, planned.NotPlanned)
		}
	}
}

func TestReferenceCycle(t *testing.T) {
	p := newPlanTest(t, `a: {}`)
	p.write(`b: {"content": "${demo_thing[\"c\"].id}"}`, `c: {"content": "${demo_thing[\"b\"].id}"}`, `d: {"content": "${demo_thing[\"b\"].id}"}`)
	const text = `reference cycle: namespace["shop"].demo_thing["b"] → namespace["shop"].demo_thing["c"] → namespace["shop"].demo_thing["b"]: remove one of these references`
	planned := p.want(Options{}, `! Thing.demo.providers.atoll.dev/b : `+text, `! Thing.demo.providers.atoll.dev/c : `+text)
	if planned.NotPlanned != 3 {
		t.Errorf("%d not planned", planned.NotPlanned)
	}
	p.write(`c: {}`)
	p.want(Options{}, `create demo_thing["b"]`, `create demo_thing["c"]`, `create demo_thing["d"]`)
}

func TestUnservedType(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	p.delete("c", false)
	p.env.Unserved["demo_thing"] = true
	p.engine.Inventory.KindsChanged()
	planned := p.want(Options{},
		`! Thing.demo.providers.atoll.dev/a : no installed Provider serves the type demo_thing: install one that does, or activate the type`,
		`! Thing.demo.providers.atoll.dev/c : its object was deleted, and no installed Provider serves the type demo_thing any more: reinstall the Provider to destroy the resource, or delete ResourceState "things.demo.c" to forget it`)
	if planned.NotPlanned != 3 {
		t.Errorf("%d not planned", planned.NotPlanned)
	}
}

// TestRemovalWaits: a removed resource waits for its dependents, and stays if they cannot be
// planned.
func TestRemovalWaits(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	p.delete("a", false)
	p.want(Options{}, `! Thing.demo.providers.atoll.dev/b spec.content: the object of namespace["shop"].demo_thing["a"] was deleted, and the resource will be destroyed: remove the reference, or create the object again`)
	p.write(`b: {"content": "${demo_thing[\"nobody\"].id}"}`)
	if planned, _ := mustPlan(t, p.engine, Options{}); planned.NotPlanned != 3 {
		t.Errorf("%d not planned, want 3", planned.NotPlanned)
	}
	p.write(`b: {}`)
	p.want(Options{}, `delete demo_thing["a"] (NotWritten)`, `update demo_thing["b"]`)
}

// TestProblemsOmitSecrets checks that a problem has no secret, though the provider quotes it.
func TestProblemsOmitSecrets(t *testing.T) {
	s := enginetest.NewEnv()
	s.Secrets["db/pw"] = "tell-nobody"
	p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
	p.write(`a: {"content": "c", "password": {"secretKeyRef": {"name": "db", "key": "pw"}}}`)
	s.Validate = func(config cty.Value) providerapi.Diagnostics {
		return providerapi.Diagnostics{{Summary: "Bad password", Detail: config.GetAttr("password").AsString() + " is too short", Attribute: cty.GetAttrPath("password")}}
	}
	p.want(Options{}, `! Thing.demo.providers.atoll.dev/a spec.password: the provider rejected the configuration: Bad password: (sensitive) is too short; change its spec`)
}

func TestPlanFails(t *testing.T) {
	p := newPlanTest(t, chainOfThree()...)
	opts := Options{Namespace: enginetest.Namespace, Mode: change.Normal}
	if _, err := p.engine.Plan(t.Context(), opts, enginetest.NewPlanStore()); err == nil || !strings.Contains(err.Error(), "salt") {
		t.Errorf("without a salt: %v", err)
	}
	opts.Salt = enginetest.Salt()
	full := enginetest.NewPlanStore()
	full.Err = errors.New("the disk is full")
	if _, err := p.engine.Plan(t.Context(), opts, full); !errors.Is(err, full.Err) {
		t.Errorf("with a failing store: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.env.BeforePlan = func(providerapi.PlanRequest) error { cancel(); return ctx.Err() }
	p.write(`a: {"content": "other"}`)
	if _, err := p.engine.Plan(ctx, opts, enginetest.NewPlanStore()); !errors.Is(err, context.Canceled) {
		t.Errorf("after it was canceled: %v", err)
	}
}

// TestParallelismLimit checks that a plan keeps its limit of concurrency.
func TestParallelismLimit(t *testing.T) {
	s := enginetest.NewEnv()
	p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
	for i := range 50 {
		p.write(fmt.Sprintf("n%d: {}", i))
	}
	var now atomic.Int64
	s.BeforePlan = func(providerapi.PlanRequest) error {
		defer now.Add(-1)
		if at := now.Add(1); at > 2 {
			t.Errorf("%d concurrent calls", at)
		}
		runtime.Gosched()
		return nil
	}
	if planned, _ := mustPlan(t, p.engine, Options{Parallelism: 2}); planned.Contents.Counts.Create != 50 {
		t.Errorf("%+v", planned.Contents.Counts)
	}
}

// TestProgress checks that progress is reported at the end in any case.
func TestProgress(t *testing.T) {
	s := enginetest.NewEnv()
	p := &planTest{model: newModel(t, s), engine: newPlanner(t, s, nil)}
	for i := range 300 {
		p.write(fmt.Sprintf(`n%d: {"content": "${demo_thing[\"n%d\"].id}"}`, i, i/2+1000), fmt.Sprintf(`n%d: {}`, i/2+1000))
	}
	var reported []int
	planned, _ := mustPlan(t, p.engine, Options{OnProgress: func(done, total int) { reported = append(reported, done, total) }})
	if planned.Contents.Counts.Create != 450 || len(reported) < 2 || reported[len(reported)-2] != 450 || reported[len(reported)-1] != 450 {
		t.Errorf("%+v, progress %v", planned.Contents.Counts, reported)
	}
}

// TestPlanWarnings checks that warnings are deduplicated and masked, and do not stop the plan.
func TestPlanWarnings(t *testing.T) {
	p := newPlanTest(t)
	p.env.Validate = func(cty.Value) providerapi.Diagnostics {
		return providerapi.Diagnostics{{Warning: true, Summary: "Careful", Detail: "for all of you", Attribute: cty.GetAttrPath("content")}}
	}
	p.write(`b: {"content": "one"}`, `a: {"content": "two"}`)
	planned := p.want(Options{}, `create demo_thing["a"]`, `create demo_thing["b"]`)
	const want = "[{Thing.demo.providers.atoll.dev/a spec.content Careful: for all of you (and 1 more)}]"
	if got := fmt.Sprint(planned.Warnings); got != want || len(planned.Problems) > 0 {
		t.Errorf("got %s, want %s; %v", got, want, planned.Problems)
	}
}

// TestMissingConfiguration: a resource that was created with a ProviderConfig is not planned without
// one, whether it stays, changes or goes.
func TestMissingConfiguration(t *testing.T) {
	p := newPlanTest(t, `a: {"content": "one"}`, `b: {"content": "one"}`)
	for _, name := range []string{"a", "b"} {
		p.state(name, func(s *infra.State) { s.Spec.Configured, s.Spec.ProviderConfig = true, "demo" })
	}
	p.env.ConfigRevision = infra.Unconfigured
	p.write(`a: {"content": "two"}`)
	p.delete("b", true)
	planned, _ := mustPlan(t, p.engine, Options{})
	if planned.Contents.Counts.Changes != 0 || len(planned.Problems) != 2 || !strings.Contains(fmt.Sprint(planned.Problems), `created with ProviderConfig`) {
		t.Errorf("%+v, problems %v", planned.Contents.Counts, planned.Problems)
	}
	p.env.ConfigRevision = "c1"
	p.want(Options{}, `update demo_thing["a"]`, `delete demo_thing["b"] (ObjectDeleted)`)
}

// cachingEnv has an Open that returns the revision of an earlier configuration.
type cachingEnv struct {
	*enginetest.Env
	cached string
	latest atomic.Int32 // calls of OpenLatest
}

func (e *cachingEnv) Open(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error) {
	opened, _, err := e.Env.Open(ctx, provider, namespace, config)
	return opened, e.cached, err
}

func (e *cachingEnv) OpenLatest(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error) {
	e.latest.Add(1)
	return e.Env.Open(ctx, provider, namespace, config)
}

// TestLatestConfiguration: a plan reads the stored ProviderConfig, although an earlier one was opened a moment ago.
// It does so once for all resources.
func TestLatestConfiguration(t *testing.T) {
	p := newPlanTest(t, `a: {"content": "one"}`, `b: {"content": "one"}`)
	for _, name := range []string{"a", "b"} {
		p.state(name, func(s *infra.State) { s.Spec.Configured, s.Spec.ProviderConfig = true, "demo" })
	}
	env := &cachingEnv{Env: p.env, cached: p.env.ConfigRevision}
	p.engine.Providers = env
	p.env.ConfigRevision = infra.Unconfigured
	planned, _ := mustPlan(t, p.engine, Options{Mode: change.Destroy})
	if planned.Contents.Counts.Changes != 0 || len(planned.Problems) != 2 || !strings.Contains(fmt.Sprint(planned.Problems), `created with ProviderConfig`) {
		t.Errorf("%+v, problems %v", planned.Contents.Counts, planned.Problems)
	}
	if calls := env.latest.Load(); calls != 1 {
		t.Errorf("the ProviderConfig was read %d times", calls)
	}
}
