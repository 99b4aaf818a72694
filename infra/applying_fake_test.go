package infra

import (
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

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// cloud is what a provider manages, with a log of what was done to it. It answers a call that it knows with what it
// answered before, as infra/provider does, and outlives every server.
type cloud struct {
	*pretender

	mu      sync.Mutex
	things  map[string]cty.Value // by ID
	made    map[string]int       // how often a name was made
	answers map[string]contract.ApplyAnswer
	log     []deed
	wrong   []string
	inUse   [][2]string // what was deleted while another referred to it: the other, and it

	// fails has what the provider says to a name; and unanswered are names of which it does not say what it did.
	fails      map[string]contract.Diagnostics
	warns      contract.Diagnostics // beside whatever is done
	unanswered map[string]bool
	hook       func(verb, name string)
}

type deed struct{ call, verb, name, id string }

func newCloud(p *pretender) *cloud {
	return &cloud{pretender: p, things: map[string]cty.Value{}, made: map[string]int{}, answers: map[string]contract.ApplyAnswer{},
		fails: map[string]contract.Diagnostics{}, unanswered: map[string]bool{}}
}

func (c *cloud) clone() *cloud {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := newCloud(c.pretender)
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

func (c *cloud) Read(_ context.Context, request contract.ReadRequest) (contract.ReadAnswer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, there := c.things[request.State.Value.GetAttr("id").AsString()]
	if !there {
		v = cty.NullVal(request.State.Value.Type())
	}
	request.State.Value = v
	return contract.ReadAnswer{State: request.State}, nil
}

func (c *cloud) Apply(_ context.Context, request contract.ApplyRequest) (contract.ApplyAnswer, error) {
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
	if said := c.fails[name]; said != nil {
		return contract.ApplyAnswer{State: contract.State{Value: request.Prior}, Diagnostics: said}, nil
	}
	answer := contract.ApplyAnswer{State: contract.State{Value: c.does(request, verb, name), Private: []byte("private " + name)}, Diagnostics: c.warns}
	c.answers[request.Call] = answer
	if c.unanswered[name] {
		return contract.ApplyAnswer{}, fmt.Errorf("the line broke: %w", contract.ErrUnavailable)
	}
	return answer, nil
}

// does it, and notes what should not have been asked.
func (c *cloud) does(request contract.ApplyRequest, verb, name string) cty.Value {
	if verb == "delete" {
		id := request.Prior.GetAttr("id").AsString()
		if _, there := c.things[id]; !there {
			c.wrong = append(c.wrong, id+" is deleted and not there")
		}
		delete(c.things, id)
		for other, v := range c.things {
			if slices.Contains(slices.Collect(maps.Values(labelsOf(v))), id) {
				c.inUse = append(c.inUse, [2]string{other, id})
			}
		}
		c.log = append(c.log, deed{request.Call, verb, name, id})
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
			c.wrong = append(c.wrong, fmt.Sprintf("%s %s refers to %s, which is not there", verb, name, text))
		}
	}
	id := of["id"].AsString()
	c.things[id] = v
	c.log = append(c.log, deed{request.Call, verb, name, id})
	return v
}

// judge tells what was done wrongly.
func (c *cloud) judge() []string {
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
			out = append(out, fmt.Sprintf("%s was deleted before %s, which was made from it and is gone, too", pair[1], pair[0]))
		}
	}
	return out
}

func (c *cloud) deeds() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, d := range c.log {
		out = append(out, d.verb+" "+d.name)
	}
	return strings.Join(out, ", ")
}

// island is a store that outlives every server, and what is in it.
type island struct {
	*stand
	cloud    *cloud
	language *reference.Language

	mu       sync.Mutex
	revision int
	states   map[reference.Ref]*State
	objects  map[reference.Ref]*Object
	status   map[reference.Ref]Published
	worlds   []*World // of all servers that there ever were, which are told of each change
}

func newIsland(t testing.TB) *island {
	t.Helper()
	language, err := reference.New()
	if err != nil {
		t.Fatal(err)
	}
	s := newStand()
	return &island{stand: s, cloud: newCloud(s.pretender), language: language,
		states: map[reference.Ref]*State{}, objects: map[reference.Ref]*Object{}, status: map[reference.Ref]Published{}}
}

func (i *island) clone() *island {
	return &island{stand: i.stand, cloud: i.cloud.clone(), language: i.language, revision: i.revision,
		states: maps.Clone(i.states), objects: maps.Clone(i.objects), status: maps.Clone(i.status)}
}

// write takes specs as kubectl apply would; those that are not there any more are deleted.
func (i *island) write(specs map[string]string) {
	for name, spec := range specs {
		ref := thing(name)
		if strings.HasPrefix(name, "data-") {
			ref = image(name)
		}
		generation := int64(1)
		if old := i.objects[ref]; old != nil {
			if string(old.Spec) == spec {
				continue
			}
			generation = old.Generation + 1
		}
		o := written(ref, generation, spec)
		o.Held = i.objects[ref] != nil && i.objects[ref].Held
		i.objects[ref] = o
	}
	for ref, old := range i.objects {
		if _, there := specs[ref.Name]; there {
			continue
		}
		if !old.Held {
			delete(i.objects, ref)
			continue
		}
		gone := *old
		gone.Deleting = true
		i.objects[ref] = &gone
	}
}

// server is one that runs for a while: what it asks of others it does by a line that can break.
type server struct {
	*island
	world  *World
	cancel context.CancelFunc

	flight sync.RWMutex // of calls: a crash is over when none is under way
	at     sync.Mutex
	calls  int
	breaks int  // at which call; 0 is never
	after  bool // the call is done, and the answer lost
	dead   bool
	faults func(call int) (fails, done bool)
}

var errBroken = errors.New("the line is broken")

// instant is a clock by which every wait is over at once.
type instant struct{ clock.RealClock }

func (instant) After(time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	out <- time.Time{}
	return out
}

func (i *island) server() (*server, *Engine) {
	s := &server{island: i, world: NewWorld(i.language, i.stand)}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.worlds = append(i.worlds, s.world)
	for _, o := range i.objects {
		s.world.SetObject(o)
	}
	for _, state := range i.states {
		s.world.SetState(state)
	}
	return s, &Engine{World: s.world, Language: i.language, Providers: s, Values: i.stand, States: s, Objects: s, Clock: instant{}}
}

// call makes one over the line.
func (s *server) call(do func() error) error {
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

func (s *server) Open(ctx context.Context, provider, namespace, config string) (contract.Provider, string, error) {
	_, revision, err := s.stand.Open(ctx, provider, namespace, config)
	return lineTo{s.cloud, s}, revision, err
}

type lineTo struct {
	*cloud
	server *server
}

func (l lineTo) Apply(ctx context.Context, request contract.ApplyRequest) (answer contract.ApplyAnswer, err error) {
	// A server that is not dead always gets what the provider says: only crashes lose it.
	l.server.at.Lock()
	faults := l.server.faults
	l.server.at.Unlock()
	if faults != nil {
		return l.cloud.Apply(ctx, request)
	}
	broken := l.server.call(func() error {
		answer, err = l.cloud.Apply(ctx, request)
		return nil
	})
	if broken != nil {
		return contract.ApplyAnswer{}, broken
	}
	return answer, err
}

func (s *server) Put(_ context.Context, state *State) (out *State, err error) {
	err = s.call(func() error { out, err = s.island.put(state); return err })
	return out, err
}

func (i *island) put(state *State) (*State, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	old := i.states[state.Ref]
	if old == nil && state.ResourceVersion != "" || old != nil && old.ResourceVersion != state.ResourceVersion {
		return nil, ErrMoved
	}
	i.revision++
	out := &State{Ref: state.Ref, UID: state.UID, ResourceVersion: fmt.Sprint(i.revision)}
	if old == nil {
		out.UID = "state-" + fmt.Sprint(i.revision)
	}
	state.Spec.DeepCopyInto(&out.Spec)
	i.states[state.Ref] = out
	for _, w := range i.worlds {
		w.SetState(out)
	}
	return out, nil
}

func (s *server) Delete(_ context.Context, state *State) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		old := s.states[state.Ref]
		if old != nil && old.ResourceVersion != state.ResourceVersion {
			return ErrMoved
		}
		delete(s.states, state.Ref)
		for _, w := range s.worlds {
			w.RemoveState(state.Ref)
		}
		return nil
	})
}

func (s *server) Hold(_ context.Context, object *Object) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		o := s.objects[object.Ref]
		if o == nil || o.UID != object.UID || o.Generation != object.Generation {
			return ErrMoved
		}
		held := *o
		held.Held = true
		s.objects[object.Ref] = &held
		s.world.SetObject(&held)
		return nil
	})
}

func (s *server) Release(_ context.Context, object *Object) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		o := s.objects[object.Ref]
		if o == nil || o.UID != object.UID {
			return nil
		}
		if o.Deleting {
			delete(s.objects, object.Ref)
			s.world.RemoveObject(object.Ref)
			return nil
		}
		free := *o
		free.Held = false
		s.objects[object.Ref] = &free
		s.world.SetObject(&free)
		return nil
	})
}

func (s *server) Publish(_ context.Context, object *Object, what Published) error {
	return s.call(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status[object.Ref] = what
		return nil
	})
}

// approvedPlan is a plan with all that it takes to carry it out.
type approvedPlan struct {
	planned *Planned
	store   *chunks
	uid     string
}

func (i *island) plan(t testing.TB, uid string, what Planning) *approvedPlan {
	t.Helper()
	_, e := i.server()
	what.Ended = func(string) bool { return true }
	planned, store := planOf(t, e, what)
	return &approvedPlan{planned, store, uid}
}

func (p *approvedPlan) applying() Applying {
	return Applying{Namespace: testNamespace, Contents: p.planned.Contents, Digest: p.planned.Contents.Digest, Salt: testSalt, Mode: plan.Normal,
		Apply: "apply", ApplyUID: p.uid, Server: "one", Parallelism: 4}
}

// apply carries a plan out by a server of its own.
func (i *island) apply(t testing.TB, p *approvedPlan) *Applied {
	t.Helper()
	_, e := i.server()
	out, err := e.Apply(t.Context(), p.applying(), p.store)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// crashing carries it out by a server that dies at a call.
func (i *island) crashing(t testing.TB, p *approvedPlan, at int, after bool) {
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

// specOf is a spec of a thing that refers to others by their IDs.
func specOf(name, content, zone string, first bool, refers ...string) string {
	labels := map[string]string{"name": name}
	for _, other := range refers {
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
