package infra

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
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
)

// chain is three things, each made from the one before.
func chain() map[string]string {
	return map[string]string{
		"net": specOf("net", "one", "a", false), "disk": specOf("disk", "one", "a", false, "net"), "vm": specOf("vm", "one", "a", false, "disk"),
	}
}

// TestApplyOrder: what is done, and in which order.
func TestApplyOrder(t *testing.T) {
	i := newIsland(t)
	step := func(uid, want string, specs map[string]string) {
		t.Helper()
		i.write(specs)
		i.cloud.log, i.cloud.inUse = nil, nil
		got := i.apply(t, i.plan(t, uid, Planning{}))
		if got.Succeeded != got.Total || i.cloud.deeds() != want {
			t.Fatalf("%s: %s, want %s: %+v", uid, i.cloud.deeds(), want, got)
		}
		if wrong := append(i.cloud.judge(), i.whole()...); len(wrong) > 0 {
			t.Fatal(wrong)
		}
	}
	specs := chain()
	step("made", "create net, create disk, create vm", specs)
	specs["disk"] = specOf("disk", "two", "a", false, "net")
	step("changed", "update disk", specs)
	specs["disk"] = specOf("disk", "two", "b", false, "net")
	step("replaced", "delete disk, create disk, update vm", specs)
	specs["disk"] = specOf("disk", "two", "a", true, "net")
	step("replaced, the new one first", "create disk, update vm, delete disk", specs)
	delete(specs, "disk")
	specs["vm"] = specOf("vm", "one", "a", false, "net")
	step("no longer used", "update vm, delete disk", specs)
	step("taken away", "delete vm, delete net", nil)
	if len(i.states)+len(i.objects)+len(i.cloud.things) > 0 {
		t.Errorf("something is left:\n%s", i.describe())
	}
}

// TestApplyTells: what users see of it, and nothing that is secret.
func TestApplyTells(t *testing.T) {
	i := newIsland(t)
	i.secrets["creds/password"] = "tell-nobody"
	i.write(map[string]string{"db": `{"labels":{"name":"db"},"password":{"secretKeyRef":{"name":"creds","key":"password"}},"connection":{"secret":"db-out"}}`})
	i.apply(t, i.plan(t, "one", Planning{}))
	told := i.status[thing("db")]
	if told.Attributes["id"] != "id-db#1" || told.Generation != 1 || told.SecretName != "db-out" ||
		string(told.Secret["token"]) != "token-db#1" || string(told.Secret["password"]) != "tell-nobody" {
		t.Errorf("it tells %+v", told)
	}
	if text := fmt.Sprint(told.Attributes, told.Conditions); strings.Contains(text, "tell-nobody") || strings.Contains(text, "token-db") {
		t.Errorf("it tells a secret: %s", text)
	}
	s := i.states[thing("db")]
	if s.Spec.Settled == "" || s.Spec.Refreshed == nil || s.Spec.Object.Generation != 1 || s.Spec.Object.UID != "uid-db" {
		t.Errorf("the state says %+v", s.Spec)
	}
	// What failed is told without the secret that the provider quotes.
	i.write(map[string]string{"db": `{"labels":{"name":"db"},"content":"x","password":{"secretKeyRef":{"name":"creds","key":"password"}},"connection":{"secret":"db-out"}}`})
	i.cloud.fails["db"] = contract.Diagnostics{{Summary: "Refused", Detail: "because of tell-nobody"}}
	got := i.apply(t, i.plan(t, "two", Planning{}))
	text := fmt.Sprint(got.Problems, i.status[thing("db")].Conditions, i.states[thing("db")].Spec.Carried)
	if got.Failed != 1 || len(got.Problems) != 1 || got.Problems[0].Address != "Thing.demo.providers.atoll.dev/db" ||
		!strings.Contains(text, "because of (sensitive)") || strings.Contains(text, "tell-nobody") {
		t.Errorf("it says %s", text)
	}
}

// TestFailureBlocks: a failure keeps from being done what depends on it, and nothing else.
func TestFailureBlocks(t *testing.T) {
	i := newIsland(t)
	specs := chain()
	specs["other"] = specOf("other", "one", "a", false, "net")
	i.write(specs)
	i.cloud.fails["disk"] = contract.Diagnostics{{Summary: "No room"}}
	p := i.plan(t, "one", Planning{})
	got := i.apply(t, p)
	if got.Succeeded != 2 || got.Failed != 1 || got.Blocked != 1 || got.Done.Create != 2 || i.cloud.deeds() != "create net, create other" {
		t.Errorf("%+v: %s", got, i.cloud.deeds())
	}
	// What failed leaves nothing, so its object can go.
	if i.states[thing("disk")] != nil || i.objects[thing("disk")].Held {
		t.Error("what was never made has a state, or is held")
	}
	delete(i.cloud.fails, "disk")
	if got := i.apply(t, i.plan(t, "two", Planning{})); got.Succeeded != 2 || got.Failed > 0 {
		t.Errorf("the rest: %+v", got)
	}
}

// TestStale: what has moved since it was planned is refused, and the rest is done.
func TestStale(t *testing.T) {
	specs := map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false), "c": specOf("c", "one", "a", false, "b")}
	changed := map[string]string{"a": specOf("a", "two", "a", false), "b": specOf("b", "two", "a", false), "c": specOf("c", "two", "a", false, "b")}
	for name, move := range map[string]func(*island){
		"the object": func(i *island) { i.write(with(changed, "b", specOf("b", "three", "a", false))) },
		"another object of the name": func(i *island) {
			o := *i.objects[thing("b")]
			o.UID = "another"
			i.objects[thing("b")] = &o
		},
		"the object is gone": func(i *island) { delete(i.objects, thing("b")) },
		"the state": func(i *island) {
			if _, err := i.put(i.states[thing("b")]); err != nil {
				t.Fatal(err)
			}
		},
		"the state is gone": func(i *island) { delete(i.states, thing("b")) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newIsland(t)
			i.write(specs)
			i.apply(t, i.plan(t, "one", Planning{}))
			i.write(changed)
			p := i.plan(t, "two", Planning{})
			move(i)
			got := i.apply(t, p)
			if got.Refused != 1 || got.Blocked != 1 || got.Succeeded != 1 || got.Done.Update != 1 || !strings.Contains(fmt.Sprint(got.Problems), "plan it again") {
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

// TestTampered: a plan that is not the one that was approved is not carried out, not even in part.
func TestTampered(t *testing.T) {
	for name, tamper := range map[string]func(*approvedPlan, *Applying){
		"another digest": func(_ *approvedPlan, what *Applying) { what.Digest = "sha256:" + strings.Repeat("0", 64) },
		"a chunk":        func(p *approvedPlan, _ *Applying) { p.store.shown[0] = nil },
		"another chunk's digest": func(_ *approvedPlan, what *Applying) {
			contents := *what.Contents
			contents.Chunks = append([]plan.ChunkInfo{}, contents.Chunks...)
			contents.Chunks[0].Digest = strings.Repeat("0", 64)
			what.Contents = &contents
		},
		"another salt":     func(_ *approvedPlan, what *Applying) { what.Salt = []byte("another salt of the same length.") },
		"no sealed parts":  func(p *approvedPlan, _ *Applying) { p.store.sealed[0] = nil },
		"sealed rubbish":   func(p *approvedPlan, _ *Applying) { p.store.sealed[0] = [][]byte{[]byte("rubbish")} },
		"another's sealed": func(p *approvedPlan, _ *Applying) { p.store.sealed[0] = otherSealed(t) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newIsland(t)
			i.write(chain())
			p := i.plan(t, "one", Planning{})
			what := p.applying()
			tamper(p, &what)
			_, e := i.server()
			if _, err := e.Apply(t.Context(), what, p.store); !errors.Is(err, errTampered) {
				t.Errorf("the error is %v", err)
			}
			if i.cloud.deeds() != "" || len(i.states) > 0 {
				t.Errorf("something was done: %s", i.cloud.deeds())
			}
		})
	}
}

// otherSealed are the sealed parts of a plan that sets other values.
func otherSealed(t *testing.T) [][]byte {
	i := newIsland(t)
	i.write(with(chain(), "vm", specOf("vm", "evil", "a", false, "disk")))
	return i.plan(t, "other", Planning{}).store.sealed[0]
}

// TestCancel: what runs ends, and nothing else begins.
func TestCancel(t *testing.T) {
	i := newIsland(t)
	i.write(chain())
	p := i.plan(t, "one", Planning{})
	canceled := make(chan struct{})
	var once sync.Once
	i.cloud.hook = func(_, name string) {
		if name == "net" {
			once.Do(func() { close(canceled) })
		}
	}
	what := p.applying()
	what.Canceled = canceled
	what.Parallelism = 1
	_, e := i.server()
	e.Clock = clock.RealClock{}
	got, err := e.Apply(t.Context(), what, p.store)
	if err != nil || got.Succeeded != 1 || got.Canceled != 2 || i.cloud.deeds() != "create net" || len(i.whole()) > 0 {
		t.Errorf("%+v, %v: %s", got, err, i.cloud.deeds())
	}
}

// TestContextEnds: a call that is under way when the server stops is written down, and the next goes on.
func TestContextEnds(t *testing.T) {
	i := newIsland(t)
	i.write(chain())
	p := i.plan(t, "one", Planning{})
	ctx, cancel := context.WithCancel(t.Context())
	i.cloud.hook = func(_, name string) {
		if name == "disk" {
			cancel()
		}
	}
	_, e := i.server()
	e.Clock = clock.RealClock{}
	got, err := e.Apply(ctx, p.applying(), p.store)
	if !errors.Is(err, context.Canceled) || got.Succeeded != 2 || len(i.whole()) > 0 {
		t.Fatalf("%+v, %v, %v", got, err, i.whole())
	}
	if got := i.apply(t, p); got.Succeeded != 3 || i.cloud.deeds() != "create net, create disk, create vm" {
		t.Errorf("%+v: %s", got, i.cloud.deeds())
	}
}

// TestUncertain: a provider that does not say whether it did it leaves that in the journal, and says what to do.
func TestUncertain(t *testing.T) {
	i := newIsland(t)
	i.write(chain())
	i.cloud.unanswered["disk"] = true
	p := i.plan(t, "one", Planning{})
	got := i.apply(t, p)
	s := i.states[thing("disk")]
	if got.Failed != 1 || got.Blocked != 1 || s == nil || s.Spec.Pending == nil || !s.Spec.Pending.Uncertain || s.Spec.Current != nil ||
		!strings.Contains(fmt.Sprint(got.Problems), ImportAnnotation) {
		t.Fatalf("%+v, %+v", got, s)
	}
	if c := i.status[thing("disk")].Conditions; !strings.Contains(fmt.Sprint(c), reasonUncertain) {
		t.Errorf("it tells %v", c)
	}
	// Another server does not know of calls that this one made, so it must not make them.
	elsewhere := i.clone()
	_, e := elsewhere.server()
	what := p.applying()
	what.Server = "two"
	if got, err := e.Apply(t.Context(), what, p.store); err != nil || got.Failed != 1 || elsewhere.cloud.deeds() != "" {
		t.Errorf("another server: %+v, %v, %s", got, err, elsewhere.cloud.deeds())
	}
	// The same server, when it goes on, is told what came of it.
	delete(i.cloud.unanswered, "disk")
	if got := i.apply(t, p); got.Succeeded != 3 || i.cloud.deeds() != "create net, create disk, create vm" || len(i.whole()) > 0 {
		t.Errorf("the same: %+v, %s, %v", got, i.cloud.deeds(), i.whole())
	}
}

// TestUncertainReplacement: as long as nobody knows of the new one, the old one is in its place.
func TestUncertainReplacement(t *testing.T) {
	i := newIsland(t)
	i.write(map[string]string{"a": specOf("a", "one", "a", true)})
	i.apply(t, i.plan(t, "one", Planning{}))
	i.write(map[string]string{"a": specOf("a", "one", "b", true)})
	i.cloud.unanswered["a"] = true
	p := i.plan(t, "two", Planning{})
	got := i.apply(t, p)
	s := i.states[thing("a")]
	if got.Failed != 1 || s.Spec.Current == nil || len(s.Spec.Deposed) > 0 || s.Spec.Pending == nil {
		t.Fatalf("%+v, %+v", got, s.Spec)
	}
	delete(i.cloud.unanswered, "a")
	if got := i.apply(t, p); got.Succeeded != 1 || i.cloud.deeds() != "create a, create a, delete a" || len(i.whole()) > 0 {
		t.Errorf("%+v, %s, %v", got, i.cloud.deeds(), i.whole())
	}
}

// TestRefreshOnly: what changed outside is stored and told, and nothing is settled by it.
func TestRefreshOnly(t *testing.T) {
	i := newIsland(t)
	i.write(map[string]string{"a": specOf("a", "one", "a", false), "b": specOf("b", "one", "a", false)})
	i.apply(t, i.plan(t, "one", Planning{}))
	delete(i.cloud.things, "id-b#1")
	i.cloud.things["id-a#1"] = withContent(i.cloud.things["id-a#1"], "drifted")
	p := i.plan(t, "two", Planning{Mode: plan.RefreshOnly, Refresh: true})
	what := p.applying()
	what.Mode = plan.RefreshOnly
	_, e := i.server()
	got, err := e.Apply(t.Context(), what, p.store)
	if err != nil || got.Succeeded != 2 || got.Done.Drift != 2 || i.states[thing("b")] != nil {
		t.Fatalf("%+v, %v\n%s", got, err, i.describe())
	}
	if s := i.states[thing("a")]; s.Spec.Settled != "" || !strings.Contains(string(s.Spec.Current.Value), "drifted") {
		t.Errorf("the state of a is %+v", s.Spec)
	}
	if text := fmt.Sprint(i.status[thing("b")].Conditions); !strings.Contains(text, reasonNone) {
		t.Errorf("b tells %s", text)
	}
	if got := actions(t, i.plan(t, "", Planning{}).planned, i.plan(t, "", Planning{}).store); !strings.Contains(got, "update") || !strings.Contains(got, "create") {
		t.Errorf("the next plan is %s", got)
	}
}

// TestDeposedIsGone: of what was replaced, and is found gone, nothing is kept.
func TestDeposedIsGone(t *testing.T) {
	i := newIsland(t)
	i.write(map[string]string{"a": specOf("a", "one", "a", true)})
	i.apply(t, i.plan(t, "one", Planning{}))
	s := i.states[thing("a")]
	old := *s.Spec.Current
	old.Value = []byte(strings.Replace(string(old.Value), "id-a#1", "id-a#0", 1))
	s.Spec.Deposed = []v1alpha1.DeposedResource{{Key: "k", ResourceValue: old}}
	got := i.apply(t, i.plan(t, "two", Planning{Refresh: true}))
	if s := i.states[thing("a")]; got.Failed > 0 || len(s.Spec.Deposed) > 0 || len(i.whole()) > 0 {
		t.Errorf("%+v, %+v, %v", got, s.Spec, i.whole())
	}
}

// TestLetGoOf: the end of a deletion is told to who keeps answers, though the server died before it could, and no state is left
// to tell that it was done.
func TestLetGoOf(t *testing.T) {
	i := newIsland(t)
	i.write(map[string]string{"a": specOf("a", "one", "a", false)})
	i.apply(t, i.plan(t, "one", Planning{}))
	i.write(map[string]string{})
	p := i.plan(t, "two", Planning{})
	var calls [2][]string
	for n := range calls {
		what := p.applying()
		what.Stored = func(call string) { calls[n] = append(calls[n], call) }
		_, e := i.server()
		if got, err := e.Apply(t.Context(), what, p.store); err != nil || got.Succeeded != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if len(calls[0]) != 1 || calls[0][0] == "" || !slices.Equal(calls[0], calls[1]) {
		t.Errorf("let go of: %v", calls)
	}
}
