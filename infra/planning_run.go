package infra

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// run is one plan on its way. It looks at the World once, and then at what it saw.
type run struct {
	*Engine
	what   Planning
	looked int64 // when it looked, by the World's clock
	// slots are first those that can be planned, by address, and then what those refer to otherwise.
	slots []slot
	views []view  // what others see of each slot
	lists []int32 // what slots use, one list after the other
	count int     // how many can be planned
	edges []graph.Edge
	graph *graph.Graph
	// scope is what is planned; nil is all that can be.
	scope *graph.Set

	kinds  cache[typeName, *Served]
	opened cache[configName, *opened]
	calls  atomic.Int64
	took   atomic.Int64
	// whole is how many slots have ended and are kept as they are for who will look at them.
	whole int

	mu         sync.Mutex
	problems   []v1alpha1.Problem
	warnings   warnings
	drifted    []reference.Ref
	seen       []reference.Ref
	read       []ReadData
	findings   []finding
	notPlanned int
}

// slot is one object with its state, and what is decided about it.
type slot struct {
	ref    reference.Ref
	node   int32 // in the World; -1 if it is not there
	object *Object
	state  *State
	reading
	uses        []int32 // other slots
	moved, seen int64
	memo        memo
	// written says that the object is not the World's; removed that the resource shall not be; replace that it was asked to
	// be made anew; createFirst that it, or what depends on it, is created before the old one is destroyed.
	written, removed, replace, createFirst bool
	// was is the World's object where another is taken for written.
	was *Object

	// same says that others see of it what the World says of it; sound that they see what the
	// World will say once this plan is remembered.
	same, sound bool
	ended       bool // whatever came of it
	// settled says that there is nothing to do, and nobody was asked.
	settled  bool
	decision *plan.Decision
	// shelved is the decision's After, encoded, once it has ended; compared says that it is looked at with what
	// was before.
	shelved  []byte
	whole    bool // it has ended, and is kept as it is
	compared bool
	outcomes []outcome
	// circle is the way from it back to itself, if there is one.
	circle string
	// users is how many are still to look at it; popular that they were many.
	users   int32
	popular bool
}

// view is what others see of a slot: its value, made when the first of them asks.
type view struct {
	once  sync.Once
	value cty.Value
	err   error
}

// outcome is a change with its sealed part.
type outcome struct {
	change *plan.Change
	sealed []byte
}

// living tells whether the resource shall be.
func (s *slot) living() bool { return s.object != nil && !s.removed }

func (s *slot) data() bool { return s.ref.Kind == reference.Data }

// cache asks for each thing once, however many want it at a time.
type cache[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]*cached[V]
}

type cached[V any] struct {
	once  sync.Once
	value V
	err   error
}

func (c *cache[K, V]) get(key K, ask func() (V, error)) (V, error) {
	c.mu.Lock()
	if c.all == nil {
		c.all = map[K]*cached[V]{}
	}
	at, known := c.all[key]
	if !known {
		at = &cached[V]{}
		c.all[key] = at
	}
	c.mu.Unlock()
	at.once.Do(func() { at.value, at.err = ask() })
	return at.value, at.err
}

// kind is how a type is served.
func (r *run) kind(ref reference.Ref) (*Served, error) {
	return r.kinds.get(typeOf(ref), func() (*Served, error) { return r.Providers.Kind(ref) })
}

// configName names a ProviderConfig.
type configName struct{ provider, namespace, config string }

// opened is a provider with a configuration, and the revision of that.
type opened struct {
	contract.Provider
	revision string
}

func (r *run) open(ctx context.Context, name configName) (*opened, error) {
	return r.opened.get(name, func() (*opened, error) {
		provider, revision, err := r.Providers.Open(ctx, name.provider, name.namespace, name.config)
		if err != nil {
			return nil, err
		}
		return &opened{Provider: &metered{Provider: provider, clock: r.Clock, calls: &r.calls, took: &r.took, called: r.what.Called}, revision: revision}, nil
	})
}

// metered counts calls of a provider, and how long they take.
type metered struct {
	contract.Provider
	clock       clock.PassiveClock
	calls, took *atomic.Int64
	called      func(calls int64) // may be nil
}

func (m *metered) begin() func() {
	began := m.clock.Now()
	return func() {
		calls := m.calls.Add(1)
		if m.called != nil {
			m.called(calls)
		}
		m.took.Add(int64(m.clock.Since(began) / time.Nanosecond))
	}
}

func (m *metered) ValidateResource(ctx context.Context, typeName string, config *contract.Configuration) (contract.Diagnostics, error) {
	defer m.begin()()
	return m.Provider.ValidateResource(ctx, typeName, config)
}

func (m *metered) ValidateData(ctx context.Context, typeName string, config cty.Value) (contract.Diagnostics, error) {
	defer m.begin()()
	return m.Provider.ValidateData(ctx, typeName, config)
}

func (m *metered) Upgrade(ctx context.Context, typeName string, stored contract.StoredState) (contract.UpgradeAnswer, error) {
	defer m.begin()()
	return m.Provider.Upgrade(ctx, typeName, stored)
}

func (m *metered) Read(ctx context.Context, request contract.ReadRequest) (contract.ReadAnswer, error) {
	defer m.begin()()
	return m.Provider.Read(ctx, request)
}

func (m *metered) Plan(ctx context.Context, request contract.PlanRequest) (contract.PlanAnswer, error) {
	defer m.begin()()
	return m.Provider.Plan(ctx, request)
}

func (m *metered) Import(ctx context.Context, typeName, id string) (contract.ImportAnswer, error) {
	defer m.begin()()
	return m.Provider.Import(ctx, typeName, id)
}

func (m *metered) ReadData(ctx context.Context, typeName string, config cty.Value) (contract.DataAnswer, error) {
	defer m.begin()()
	return m.Provider.ReadData(ctx, typeName, config)
}
