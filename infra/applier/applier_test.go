package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// chain returns three things, each created from the one before.
func chain() map[string]string {
	return map[string]string{
		"net": specOf("net", "one", "a", false), "disk": specOf("disk", "one", "a", false, "net"), "vm": specOf("vm", "one", "a", false, "disk"),
	}
}

// TestApplyOrder checks the operations of an apply and their order.
func TestApplyOrder(t *testing.T) {
	i := newDatastore(t)
	step := func(uid, want string, specs map[string]string) {
		t.Helper()
		i.writeSpecs(specs)
		i.cloud.log, i.cloud.inUse = nil, nil
		got := i.apply(t, i.plan(t, uid, planner.Options{}))
		if got.Succeeded != got.Total || i.cloud.operations() != want {
			t.Fatalf("%s: %s, want %s: %+v", uid, i.cloud.operations(), want, got)
		}
		if wrong := append(i.cloud.violations(), i.inconsistencies()...); len(wrong) > 0 {
			t.Fatal(wrong)
		}
	}
	specs := chain()
	step("create", "create net, create disk, create vm", specs)
	specs["disk"] = specOf("disk", "two", "a", false, "net")
	step("update", "update disk", specs)
	specs["disk"] = specOf("disk", "two", "b", false, "net")
	step("replace", "delete disk, create disk, update vm", specs)
	specs["disk"] = specOf("disk", "two", "a", true, "net")
	step("create before destroy", "create disk, update vm, delete disk", specs)
	delete(specs, "disk")
	specs["vm"] = specOf("vm", "one", "a", false, "net")
	step("remove in use", "update vm, delete disk", specs)
	step("delete", "delete vm, delete net", nil)
	if len(i.states)+len(i.objects)+len(i.cloud.things) > 0 {
		t.Errorf("left over:\n%s", i.describe())
	}
}

// TestApplyStatus checks the status of an object, and that it has no secrets.
func TestApplyStatus(t *testing.T) {
	i := newDatastore(t)
	i.Secrets["creds/password"] = "top-secret"
	i.writeSpecs(map[string]string{"db": `{"labels":{"name":"db"},"password":{"secretKeyRef":{"name":"creds","key":"password"}},"connection":{"secret":"db-out"}}`})
	i.apply(t, i.plan(t, "one", planner.Options{}))
	status := i.status[enginetest.ThingRef("db")]
	if status.Attributes["id"] != "id-db#1" || status.Generation != 1 || status.SecretName != "db-out" ||
		string(status.Secret["token"]) != "token-db#1" || string(status.Secret["password"]) != "top-secret" {
		t.Errorf("the status is %+v", status)
	}
	if text := fmt.Sprint(status.Attributes, status.Conditions); strings.Contains(text, "top-secret") || strings.Contains(text, "token-db") {
		t.Errorf("the status has a secret: %s", text)
	}
	s := i.states[enginetest.ThingRef("db")]
	if s.Spec.Settled == "" || s.Spec.Refreshed == nil || s.Spec.Object.Generation != 1 || s.Spec.Object.UID != "uid-db" {
		t.Errorf("the state is %+v", s.Spec)
	}
	// A failure is reported without the secret that the provider quotes.
	i.writeSpecs(map[string]string{"db": `{"labels":{"name":"db"},"content":"x","password":{"secretKeyRef":{"name":"creds","key":"password"}},"connection":{"secret":"db-out"}}`})
	i.cloud.fails["db"] = providerapi.Diagnostics{{Summary: "Refused", Detail: "because of top-secret"}}
	got := i.apply(t, i.plan(t, "two", planner.Options{}))
	text := fmt.Sprint(got.Problems, i.status[enginetest.ThingRef("db")].Conditions, i.states[enginetest.ThingRef("db")].Spec.Carried)
	if got.Failed != 1 || len(got.Problems) != 1 || got.Problems[0].Address != "Thing.demo.providers.atoll.dev/db" ||
		!strings.Contains(text, "because of (sensitive)") || strings.Contains(text, "top-secret") {
		t.Errorf("got %s", text)
	}
}

// TestFailureBlocks checks that a failure blocks its dependents and nothing else.
func TestFailureBlocks(t *testing.T) {
	i := newDatastore(t)
	specs := chain()
	specs["other"] = specOf("other", "one", "a", false, "net")
	i.writeSpecs(specs)
	i.cloud.fails["disk"] = providerapi.Diagnostics{{Summary: "No room"}}
	p := i.plan(t, "one", planner.Options{})
	got := i.apply(t, p)
	if got.Succeeded != 2 || got.Failed != 1 || got.Blocked != 1 || got.Summary.Create != 2 || i.cloud.operations() != "create net, create other" {
		t.Errorf("%+v: %s", got, i.cloud.operations())
	}
	// A failed creation leaves no state, so that the object can be deleted.
	if i.states[enginetest.ThingRef("disk")] != nil || i.objects[enginetest.ThingRef("disk")].HasFinalizer {
		t.Error("a resource that was never created has a state or a finalizer")
	}
	delete(i.cloud.fails, "disk")
	if got := i.apply(t, i.plan(t, "two", planner.Options{})); got.Succeeded != 2 || got.Failed > 0 {
		t.Errorf("second apply: %+v", got)
	}
}

// TestStale checks that changes of stale resources are refused, and the others carried out.
func TestStale(t *testing.T) {
	specs := map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false), "c": specOf("c", "one", "a", false, "b")}
	changed := map[string]string{"a": specOf("a", "two", "a", false), "b": specOf("b", "two", "a", false), "c": specOf("c", "two", "a", false, "b")}
	for name, move := range map[string]func(*datastore){
		"the object": func(i *datastore) { i.writeSpecs(with(changed, "b", specOf("b", "three", "a", false))) },
		"another object of the name": func(i *datastore) {
			o := *i.objects[enginetest.ThingRef("b")]
			o.UID = "another"
			i.objects[enginetest.ThingRef("b")] = &o
		},
		"the object is gone": func(i *datastore) { delete(i.objects, enginetest.ThingRef("b")) },
		"the state": func(i *datastore) {
			if _, err := i.put(i.states[enginetest.ThingRef("b")]); err != nil {
				t.Fatal(err)
			}
		},
		"the state is gone": func(i *datastore) { delete(i.states, enginetest.ThingRef("b")) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newDatastore(t)
			i.writeSpecs(specs)
			i.apply(t, i.plan(t, "one", planner.Options{}))
			i.writeSpecs(changed)
			p := i.plan(t, "two", planner.Options{})
			move(i)
			got := i.apply(t, p)
			if got.Refused != 1 || got.Blocked != 1 || got.Succeeded != 1 || got.Summary.Update != 1 || !strings.Contains(fmt.Sprint(got.Problems), ": plan again") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func with(specs map[string]string, name, spec string) map[string]string {
	out := map[string]string{}
	for n, s := range specs {
		out[n] = s
	}
	out[name] = spec
	return out
}

// TestTampered checks that a plan other than the approved one is not applied, not even in part.
func TestTampered(t *testing.T) {
	for name, tamper := range map[string]func(*approvedPlan, *Options){
		"another digest": func(_ *approvedPlan, opts *Options) { opts.Digest = "sha256:" + strings.Repeat("0", 64) },
		"a chunk":        func(p *approvedPlan, _ *Options) { p.store.ShownPieces[0] = nil },
		"another chunk's digest": func(_ *approvedPlan, opts *Options) {
			contents := *opts.Contents
			contents.Chunks = append([]planstore.ChunkInfo{}, contents.Chunks...)
			contents.Chunks[0].Digest = strings.Repeat("0", 64)
			opts.Contents = &contents
		},
		"another salt":         func(_ *approvedPlan, opts *Options) { opts.Salt = []byte("another salt of the same length.") },
		"no sealed parts":      func(p *approvedPlan, _ *Options) { p.store.SealedPieces[0] = nil },
		"damaged sealed parts": func(p *approvedPlan, _ *Options) { p.store.SealedPieces[0] = [][]byte{[]byte("rubbish")} },
		"another's sealed":     func(p *approvedPlan, _ *Options) { p.store.SealedPieces[0] = otherSealed(t) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newDatastore(t)
			i.writeSpecs(chain())
			p := i.plan(t, "one", planner.Options{})
			opts := p.applying()
			tamper(p, &opts)
			_, e := i.server()
			if _, err := e.Apply(t.Context(), opts, p.store); !errors.Is(err, errTampered) {
				t.Errorf("the error is %v", err)
			}
			if i.cloud.operations() != "" || len(i.states) > 0 {
				t.Errorf("the provider was called: %s", i.cloud.operations())
			}
		})
	}
}

// otherSealed returns the sealed parts of a plan with other values.
func otherSealed(t *testing.T) [][]byte {
	i := newDatastore(t)
	i.writeSpecs(with(chain(), "vm", specOf("vm", "evil", "a", false, "disk")))
	return i.plan(t, "other", planner.Options{}).store.SealedPieces[0]
}

// TestCancel checks that running steps end and no others start.
func TestCancel(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(chain())
	p := i.plan(t, "one", planner.Options{})
	canceled := make(chan struct{})
	var once sync.Once
	i.cloud.hook = func(_, name string) {
		if name == "net" {
			once.Do(func() { close(canceled) })
		}
	}
	opts := p.applying()
	opts.Canceled = canceled
	opts.Parallelism = 1
	_, e := i.server()
	e.Applier.Clock = clock.RealClock{}
	got, err := e.Apply(t.Context(), opts, p.store)
	if err != nil || got.Succeeded != 1 || got.Canceled != 2 || i.cloud.operations() != "create net" || len(i.inconsistencies()) > 0 {
		t.Errorf("%+v, %v: %s", got, err, i.cloud.operations())
	}
}

// TestContextCanceled checks that the outcome of a running call is stored when the server stops,
// and that the next server resumes.
func TestContextCanceled(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(chain())
	p := i.plan(t, "one", planner.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	i.cloud.hook = func(_, name string) {
		if name == "disk" {
			cancel()
		}
	}
	_, e := i.server()
	e.Applier.Clock = clock.RealClock{}
	got, err := e.Apply(ctx, p.applying(), p.store)
	if !errors.Is(err, context.Canceled) || got.Succeeded != 2 || len(i.inconsistencies()) > 0 {
		t.Fatalf("%+v, %v, %v", got, err, i.inconsistencies())
	}
	if got := i.apply(t, p); got.Succeeded != 3 || i.cloud.operations() != "create net, create disk, create vm" {
		t.Errorf("%+v: %s", got, i.cloud.operations())
	}
}

// TestUncertain checks that a call without an answer stays in the journal, with a remedy in its
// Problem.
func TestUncertain(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(chain())
	i.cloud.unanswered["disk"] = true
	p := i.plan(t, "one", planner.Options{})
	got := i.apply(t, p)
	s := i.states[enginetest.ThingRef("disk")]
	if got.Failed != 1 || got.Blocked != 1 || s == nil || s.Spec.Pending == nil || !s.Spec.Pending.Uncertain || s.Spec.Current != nil ||
		!strings.Contains(fmt.Sprint(got.Problems), infra.ImportAnnotation) {
		t.Fatalf("%+v, %+v", got, s)
	}
	if c := i.status[enginetest.ThingRef("disk")].Conditions; !strings.Contains(fmt.Sprint(c), reasonUncertain) {
		t.Errorf("conditions are %v", c)
	}
	// Another server cannot know of this server's calls, so that it must not repeat them.
	elsewhere := i.clone()
	_, e := elsewhere.server()
	opts := p.applying()
	opts.Server = "two"
	if got, err := e.Apply(t.Context(), opts, p.store); err != nil || got.Failed != 1 || elsewhere.cloud.operations() != "" {
		t.Errorf("another server: %+v, %v, %s", got, err, elsewhere.cloud.operations())
	}
	// The same server gets the outcome when it resumes.
	delete(i.cloud.unanswered, "disk")
	if got := i.apply(t, p); got.Succeeded != 3 || i.cloud.operations() != "create net, create disk, create vm" || len(i.inconsistencies()) > 0 {
		t.Errorf("same server: %+v, %s, %v", got, i.cloud.operations(), i.inconsistencies())
	}
}

// TestUncertainReplacement checks that the old resource stays current while the outcome of the
// creation is unknown.
func TestUncertainReplacement(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(map[string]string{"a": specOf("a", "one", "a", true)})
	i.apply(t, i.plan(t, "one", planner.Options{}))
	i.writeSpecs(map[string]string{"a": specOf("a", "one", "b", true)})
	i.cloud.unanswered["a"] = true
	p := i.plan(t, "two", planner.Options{})
	got := i.apply(t, p)
	s := i.states[enginetest.ThingRef("a")]
	if got.Failed != 1 || s.Spec.Current == nil || len(s.Spec.Deposed) > 0 || s.Spec.Pending == nil {
		t.Fatalf("%+v, %+v", got, s.Spec)
	}
	delete(i.cloud.unanswered, "a")
	if got := i.apply(t, p); got.Succeeded != 1 || i.cloud.operations() != "create a, create a, delete a" || len(i.inconsistencies()) > 0 {
		t.Errorf("%+v, %s, %v", got, i.cloud.operations(), i.inconsistencies())
	}
}

// TestReplacementKeepsOld: with deletion-policy Forget, a replacement leaves the old resource in place, also
// if a server crashes meanwhile. A deposed resource of an earlier replacement stays, too.
func TestReplacementKeepsOld(t *testing.T) {
	for _, createFirst := range []bool{false, true} {
		for crash := range 12 {
			i := newDatastore(t)
			i.writeSpecs(map[string]string{"a": specOf("a", "one", "a", createFirst)})
			i.apply(t, i.plan(t, "one", planner.Options{}))
			i.writeSpecs(map[string]string{"a": specOf("a", "one", "b", createFirst)})
			ref := enginetest.ThingRef("a")
			i.objects[ref].Forget = true
			p := i.plan(t, "two", planner.Options{})
			if c := p.planned.Contents.Counts; c.Summary() != "Plan: 1 to add, 0 to change, 0 to destroy, 1 to forget." {
				t.Fatal(c.Summary())
			}
			if crash > 0 {
				i.applyCrashing(t, p, crash, crash%2 == 0)
			}
			got := i.apply(t, p)
			s := i.states[ref]
			if strings.Contains(i.cloud.operations(), "delete") || len(i.cloud.things) != 2 || s == nil || s.Spec.Current == nil || len(s.Spec.Deposed) > 0 || got.Failed > 0 {
				t.Fatalf("create first %v, crash %d: %s, %+v, %+v", createFirst, crash, i.cloud.operations(), s, got.Problems)
			}
			if crash == 0 && (got.Summary.Replace != 1 || got.Summary.Kept != 1) {
				t.Errorf("summary %+v", got.Summary)
			}
			s.Spec.Deposed = []v1alpha1.DeposedResource{{Key: "k", ResourceValue: *s.Spec.Current}}
			i.apply(t, i.plan(t, "three", planner.Options{}))
			if s := i.states[ref]; strings.Contains(i.cloud.operations(), "delete") || len(s.Spec.Deposed) > 0 {
				t.Fatalf("the deposed one: %s, %+v", i.cloud.operations(), s.Spec)
			}
		}
	}
}

// TestRefreshOnly checks that drift is stored and published, without settling anything.
func TestRefreshOnly(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false)})
	i.apply(t, i.plan(t, "one", planner.Options{}))
	delete(i.cloud.things, "id-b#1")
	i.cloud.things["id-a#1"] = withContent(i.cloud.things["id-a#1"], "drifted")
	p := i.plan(t, "two", planner.Options{Mode: change.RefreshOnly, Refresh: true})
	opts := p.applying()
	opts.Mode = change.RefreshOnly
	_, e := i.server()
	got, err := e.Apply(t.Context(), opts, p.store)
	if err != nil || got.Succeeded != 2 || got.Summary.Drift != 2 || i.states[enginetest.ThingRef("b")] != nil {
		t.Fatalf("%+v, %v\n%s", got, err, i.describe())
	}
	if s := i.states[enginetest.ThingRef("a")]; s.Spec.Settled != "" || !strings.Contains(string(s.Spec.Current.Value), "drifted") {
		t.Errorf("the state of a is %+v", s.Spec)
	}
	if text := fmt.Sprint(i.status[enginetest.ThingRef("b")].Conditions); !strings.Contains(text, reasonNone) {
		t.Errorf("conditions of b are %s", text)
	}
	next := i.plan(t, "", planner.Options{})
	if got := next.store.Actions(t, next.planned.Contents, next.planned.Problems); !strings.Contains(got, "update") || !strings.Contains(got, "create") {
		t.Errorf("the next plan is %s", got)
	}
}

// TestDeposedIsGone checks that a deposed resource that is found gone is removed from the state.
func TestDeposedIsGone(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(map[string]string{"a": specOf("a", "one", "a", true)})
	i.apply(t, i.plan(t, "one", planner.Options{}))
	s := i.states[enginetest.ThingRef("a")]
	old := *s.Spec.Current
	old.Value = []byte(strings.Replace(string(old.Value), "id-a#1", "id-a#0", 1))
	s.Spec.Deposed = []v1alpha1.DeposedResource{{Key: "k", ResourceValue: old}}
	got := i.apply(t, i.plan(t, "two", planner.Options{Refresh: true}))
	if s := i.states[enginetest.ThingRef("a")]; got.Failed > 0 || len(s.Spec.Deposed) > 0 || len(i.inconsistencies()) > 0 {
		t.Errorf("%+v, %+v, %v", got, s.Spec, i.inconsistencies())
	}
}

// TestOnStoredIsRepeated checks that OnStored is called for a deletion again after a crash, though
// no state is left that records it.
func TestOnStoredIsRepeated(t *testing.T) {
	i := newDatastore(t)
	i.writeSpecs(map[string]string{"a": specOf("a", "one", "a", false)})
	i.apply(t, i.plan(t, "one", planner.Options{}))
	i.writeSpecs(map[string]string{})
	p := i.plan(t, "two", planner.Options{})
	var calls [2][]string
	for n := range calls {
		opts := p.applying()
		opts.OnStored = func(call string) { calls[n] = append(calls[n], call) }
		_, e := i.server()
		if got, err := e.Apply(t.Context(), opts, p.store); err != nil || got.Succeeded != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if len(calls[0]) != 1 || calls[0][0] == "" || !slices.Equal(calls[0], calls[1]) {
		t.Errorf("stored calls: %v", calls)
	}
}

func TestApplyWarnings(t *testing.T) {
	i := newDatastore(t)
	i.Secrets["creds/password"] = "tell-nobody"
	i.writeSpecs(map[string]string{"db": `{"labels":{"name":"db"},"password":{"secretKeyRef":{"name":"creds","key":"password"}}}`})
	i.cloud.warns = providerapi.Diagnostics{{Warning: true, Summary: "Careful", Detail: "with tell-nobody"}}
	got := i.apply(t, i.plan(t, "one", planner.Options{}))
	text := fmt.Sprint(got.Warnings)
	if got.Succeeded != 1 || !strings.Contains(text, "Thing.demo.providers.atoll.dev/db  Careful: with (sensitive)") || strings.Contains(text, "tell-nobody") {
		t.Errorf("%+v: got %s", got, text)
	}
}
