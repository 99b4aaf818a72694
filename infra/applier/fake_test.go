package applier

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// fakeCloud is a provider's backend with a log of operations. It outlives every server. It answers
// a repeated call with the first answer, as infra/plugin does.
type fakeCloud struct {
	*enginetest.Provider

	mu      sync.Mutex
	things  map[string]cty.Value // by ID
	made    map[string]int       // number of creations by name
	answers map[string]providerapi.ApplyAnswer
	log     []operation
	wrong   []string
	inUse   [][2]string // resources deleted while in use: the user, and the deleted one

	// fails has errors by name; unanswered are names whose calls get no answer.
	fails      map[string]providerapi.Diagnostics
	warns      providerapi.Diagnostics // added to every answer
	unanswered map[string]bool
	hook       func(verb, name string)
}

type operation struct{ call, verb, name, id string }

func newFakeCloud(p *enginetest.Provider) *fakeCloud {
	return &fakeCloud{Provider: p, things: map[string]cty.Value{}, made: map[string]int{}, answers: map[string]providerapi.ApplyAnswer{},
		fails: map[string]providerapi.Diagnostics{}, unanswered: map[string]bool{}}
}

func (c *fakeCloud) clone() *fakeCloud {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := newFakeCloud(c.Provider)
	out.things, out.made, out.answers = maps.Clone(c.things), maps.Clone(c.made), maps.Clone(c.answers)
	return out
}

func labelsOf(v cty.Value) map[string]string {
	out := map[string]string{}
	if labels := v.GetAttr("labels"); !labels.IsNull() {
		for name, text := range labels.AsValueMap() {
			out[name] = text.AsString()
		}
	}
	return out
}

func (c *fakeCloud) Read(_ context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, there := c.things[request.State.Value.GetAttr("id").AsString()]
	if !there {
		v = cty.NullVal(request.State.Value.Type())
	}
	request.State.Value = v
	return providerapi.ReadAnswer{State: request.State}, nil
}

func (c *fakeCloud) Apply(_ context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	verb, from := "update", request.Planned
	switch {
	case request.Prior.IsNull():
		verb = "create"
	case request.Planned.IsNull():
		verb, from = "delete", request.Prior
	}
	name := labelsOf(from)["name"]
	if c.hook != nil {
		c.hook(verb, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, there := c.answers[request.Call]; there && request.Call != "" {
		return answer, nil
	}
	if request.Call == "" {
		c.wrong = append(c.wrong, "a call without a name: "+verb+" "+name)
	}
	if diagnostics := c.fails[name]; diagnostics != nil {
		return providerapi.ApplyAnswer{State: providerapi.State{Value: request.Prior}, Diagnostics: diagnostics}, nil
	}
	answer := providerapi.ApplyAnswer{State: providerapi.State{Value: c.does(request, verb, name), Private: []byte("private " + name)}, Diagnostics: c.warns}
	c.answers[request.Call] = answer
	if c.unanswered[name] {
		return providerapi.ApplyAnswer{}, fmt.Errorf("connection lost: %w", providerapi.ErrUnavailable)
	}
	return answer, nil
}

// does carries out a request and records the illegal ones.
func (c *fakeCloud) does(request providerapi.ApplyRequest, verb, name string) cty.Value {
	if verb == "delete" {
		id := request.Prior.GetAttr("id").AsString()
		if _, there := c.things[id]; !there {
			c.wrong = append(c.wrong, id+" is deleted, but does not exist")
		}
		delete(c.things, id)
		for other, v := range c.things {
			if slices.Contains(slices.Collect(maps.Values(labelsOf(v))), id) {
				c.inUse = append(c.inUse, [2]string{other, id})
			}
		}
		c.log = append(c.log, operation{request.Call, verb, name, id})
		return request.Planned
	}
	of := request.Planned.AsValueMap()
	if verb == "create" {
		c.made[name]++
	}
	for at, v := range of {
		switch {
		case v.IsKnown():
		case v.Type() == cty.Number:
			of[at] = cty.NumberIntVal(7)
		default:
			of[at] = cty.StringVal(fmt.Sprintf("%s-%s#%d", at, name, c.made[name]))
		}
	}
	v := cty.ObjectVal(of)
	for _, text := range labelsOf(v) {
		if _, there := c.things[text]; strings.HasPrefix(text, "id-") && !there {
			c.wrong = append(c.wrong, fmt.Sprintf("%s %s refers to %s, which does not exist", verb, name, text))
		}
	}
	id := of["id"].AsString()
	c.things[id] = v
	c.log = append(c.log, operation{request.Call, verb, name, id})
	return v
}

// violations returns the illegal operations.
func (c *fakeCloud) violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Clone(c.wrong)
	seen := map[string]bool{}
	for _, d := range c.log {
		if seen[d.call] {
			out = append(out, fmt.Sprintf("%v was done twice", d))
		}
		seen[d.call] = true
	}
	for _, pair := range c.inUse {
		if _, there := c.things[pair[0]]; !there {
			out = append(out, fmt.Sprintf("%s was deleted before its dependent %s", pair[1], pair[0]))
		}
	}
	return out
}

func (c *fakeCloud) operations() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, d := range c.log {
		out = append(out, d.verb+" "+d.name)
	}
	return strings.Join(out, ", ")
}

// datastore holds objects and states, and outlives every server.
type datastore struct {
	*enginetest.Env
	cloud    *fakeCloud
	language *expr.Language

	mu          sync.Mutex
	revision    int
	states      map[expr.Ref]*infra.State
	objects     map[expr.Ref]*infra.Object
	status      map[expr.Ref]infra.ObjectStatus
	inventories []*inventory.Inventory // of all servers ever started; they are told of every change
}

func newDatastore(t testing.TB) *datastore {
	t.Helper()
	language, err := expr.New()
	if err != nil {
		t.Fatal(err)
	}
	s := enginetest.NewEnv()
	return &datastore{Env: s, cloud: newFakeCloud(s.Provider), language: language,
		states: map[expr.Ref]*infra.State{}, objects: map[expr.Ref]*infra.Object{}, status: map[expr.Ref]infra.ObjectStatus{}}
}

func (i *datastore) clone() *datastore {
	return &datastore{Env: i.Env, cloud: i.cloud.clone(), language: i.language, revision: i.revision,
		states: maps.Clone(i.states), objects: maps.Clone(i.objects), status: maps.Clone(i.status)}
}

// writeSpecs applies specs as kubectl apply would, and deletes the others.
func (i *datastore) writeSpecs(specs map[string]string) {
	for name, spec := range specs {
		ref := enginetest.ThingRef(name)
		if strings.HasPrefix(name, "data-") {
			ref = enginetest.ImageRef(name)
		}
		generation := int64(1)
		if old := i.objects[ref]; old != nil {
			if string(old.Spec) == spec {
				continue
			}
			generation = old.Generation + 1
		}
		o := enginetest.NewObject(ref, generation, spec)
		o.HasFinalizer = i.objects[ref] != nil && i.objects[ref].HasFinalizer
		i.objects[ref] = o
	}
	for ref, old := range i.objects {
		if _, there := specs[ref.Name]; there {
			continue
		}
		if !old.HasFinalizer {
			delete(i.objects, ref)
			continue
		}
		deleted := *old
		deleted.Deleting = true
		i.objects[ref] = &deleted
	}
}

// fakeServer is one server process. Its calls go over a connection that can break.
type fakeServer struct {
	*datastore
	inventory *inventory.Inventory
	cancel    context.CancelFunc

	flight sync.RWMutex // held during calls: after a crash no call is running
	at     sync.Mutex
	calls  int
	breaks int  // the call at which it crashes; 0 is never
	after  bool // crash after the call: only the answer is lost
	dead   bool
	faults func(call int) (fails, done bool)
}

var errBroken = errors.New("connection lost")

// instantClock is a clock whose timers fire at once.
type instantClock struct{ clock.RealClock }

func (instantClock) After(time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	out <- time.Time{}
	return out
}

// testEngine plans and applies.
type testEngine struct {
	*planner.Planner
	*Applier
}

func (e *testEngine) mustPlan(t testing.TB, opts planner.Options) (*planner.Result, *enginetest.PlanStore) {
	t.Helper()
	opts.Salt = enginetest.Salt()
	if opts.Namespace == "" {
		opts.Namespace = enginetest.Namespace
	}
	if opts.Mode == "" {
		opts.Mode = change.Normal
	}
	store := enginetest.NewPlanStore()
	planned, err := e.Plan(t.Context(), opts, store)
	if err != nil {
		t.Fatal(err)
	}
	return planned, store
}

func (i *datastore) server() (*fakeServer, *testEngine) {
	s := &fakeServer{datastore: i, inventory: inventory.New(i.language, i.Env)}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.inventories = append(i.inventories, s.inventory)
	for _, o := range i.objects {
		s.inventory.SetObject(o)
	}
	for _, state := range i.states {
		s.inventory.SetState(state)
	}
	evaluator := evaluate.Evaluator{Language: i.language, Values: i.Env, Functions: i.Env}
	return s, &testEngine{
		Planner: &planner.Planner{Inventory: s.inventory, Evaluator: evaluator, Providers: s, Clock: instantClock{}},
		Applier: &Applier{Inventory: s.inventory, Evaluator: evaluator, Providers: s, States: s, Objects: s, Clock: instantClock{}},
	}
}

// call makes a call over the connection.
func (s *fakeServer) call(do func() error) error {
	s.flight.RLock()
	defer s.flight.RUnlock()
	s.at.Lock()
	s.calls++
	if s.dead {
		s.at.Unlock()
		return errBroken
	}
	breaks, done := s.calls == s.breaks, s.after
	if breaks {
		s.dead = true
		s.cancel()
	}
	if !breaks && s.faults != nil {
		breaks, done = s.faults(s.calls)
	}
	s.at.Unlock()
	if !breaks {
		return do()
	}
	if done {
		_ = do()
	}
	return errBroken
}

func (s *fakeServer) Open(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error) {
	_, revision, err := s.Env.Open(ctx, provider, namespace, config)
	return faultyProvider{s.cloud, s}, revision, err
}

func (s *fakeServer) OpenLatest(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error) {
	return s.Open(ctx, provider, namespace, config)
}

type faultyProvider struct {
	*fakeCloud
	server *fakeServer
}

func (l faultyProvider) Apply(ctx context.Context, request providerapi.ApplyRequest) (answer providerapi.ApplyAnswer, err error) {
	// A live server always gets the provider's answer: only crashes lose it.
	l.server.at.Lock()
	faults := l.server.faults
	l.server.at.Unlock()
	if faults != nil {
		return l.fakeCloud.Apply(ctx, request)
	}
	broken := l.server.call(func() error {
		answer, err = l.fakeCloud.Apply(ctx, request)
		return nil
	})
	if broken != nil {
		return providerapi.ApplyAnswer{}, broken
	}
	return answer, err
}

func (s *fakeServer) Put(_ context.Context, state *infra.State) (out *infra.State, err error) {
	err = s.call(func() error { out, err = s.datastore.put(state); return err })
	return out, err
}

func (i *datastore) put(state *infra.State) (*infra.State, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	old := i.states[state.Ref]
	if old == nil && state.ResourceVersion != "" || old != nil && old.ResourceVersion != state.ResourceVersion {
		return nil, infra.ErrStale
	}
	i.revision++
	out := &infra.State{Ref: state.Ref, UID: state.UID, ResourceVersion: fmt.Sprint(i.revision)}
	if old == nil {
		out.UID = "state-" + fmt.Sprint(i.revision)
	}
	state.Spec.DeepCopyInto(&out.Spec)
	i.states[state.Ref] = out
	for _, w := range i.inventories {
		w.SetState(out)
	}
	return out, nil
}

func (s *fakeServer) Delete(_ context.Context, state *infra.State) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		old := s.states[state.Ref]
		if old != nil && old.ResourceVersion != state.ResourceVersion {
			return infra.ErrStale
		}
		delete(s.states, state.Ref)
		for _, w := range s.inventories {
			w.RemoveState(state.Ref)
		}
		return nil
	})
}

func (s *fakeServer) AddFinalizer(_ context.Context, object *infra.Object) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		o := s.objects[object.Ref]
		if o == nil || o.UID != object.UID || o.Generation != object.Generation {
			return infra.ErrStale
		}
		held := *o
		held.HasFinalizer = true
		s.objects[object.Ref] = &held
		s.inventory.SetObject(&held)
		return nil
	})
}

func (s *fakeServer) RemoveFinalizer(_ context.Context, object *infra.Object) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		o := s.objects[object.Ref]
		if o == nil || o.UID != object.UID {
			return nil
		}
		if o.Deleting {
			delete(s.objects, object.Ref)
			s.inventory.RemoveObject(object.Ref)
			return nil
		}
		free := *o
		free.HasFinalizer = false
		s.objects[object.Ref] = &free
		s.inventory.SetObject(&free)
		return nil
	})
}

func (s *fakeServer) UpdateStatus(_ context.Context, object *infra.Object, status infra.ObjectStatus) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status[object.Ref] = status
		return nil
	})
}

// approvedPlan is a plan with everything needed to apply it.
type approvedPlan struct {
	planned *planner.Result
	store   *enginetest.PlanStore
	uid     string
	// namespace of the plan
	namespace string
}

func (i *datastore) plan(t testing.TB, uid string, opts planner.Options) *approvedPlan {
	t.Helper()
	_, e := i.server()
	opts.ApplyEnded = func(string) bool { return true }
	planned, store := e.mustPlan(t, opts)
	return &approvedPlan{planned, store, uid, cmp.Or(opts.Namespace, enginetest.Namespace)}
}

func (p *approvedPlan) applying() Options {
	return Options{Namespace: p.namespace, Contents: p.planned.Contents, Digest: p.planned.Contents.Digest, Salt: enginetest.Salt(), Mode: change.Normal,
		Apply: "apply", ApplyUID: p.uid, Server: "one", Parallelism: 4}
}

// apply applies a plan with a new server.
func (i *datastore) apply(t testing.TB, p *approvedPlan) *Result {
	t.Helper()
	_, e := i.server()
	out, err := e.Apply(t.Context(), p.applying(), p.store)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// applyCrashing applies a plan with a server that crashes at a call.
func (i *datastore) applyCrashing(t testing.TB, p *approvedPlan, at int, after bool) {
	t.Helper()
	s, e := i.server()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.breaks, s.after, s.cancel = at, after, cancel
	_, _ = e.Apply(ctx, p.applying(), p.store)
	s.flight.Lock()
	defer s.flight.Unlock()
	s.at.Lock()
	defer s.at.Unlock()
	s.dead = true
}

// specOf returns the spec of a thing that refers to others by their IDs.
func specOf(name, content, zone string, first bool, references ...string) string {
	labels := map[string]string{"name": name}
	for _, other := range references {
		if strings.HasPrefix(other, "data-") {
			labels[other] = fmt.Sprintf("${data.demo_image[%q].id}", other)
		} else {
			labels[other] = fmt.Sprintf("${demo_thing[%q].id}", other)
		}
	}
	spec := map[string]any{"labels": labels, "content": content, "zone": zone}
	if first {
		spec["lifecycle"] = map[string]any{"create_before_destroy": true}
	}
	out, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return string(out)
}

func withContent(v cty.Value, content string) cty.Value {
	of := v.AsValueMap()
	of["content"] = cty.StringVal(content)
	return cty.ObjectVal(of)
}
