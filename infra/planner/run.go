package planner

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/problems"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// run is one run of Planner.Plan. It works on a snapshot of the Inventory.
type run struct {
	*Planner
	opts  Options
	taken *inventory.Snapshot
	// slots are the resources that can be planned, by address, followed by the other resources that
	// they refer to.
	slots  []slot
	values []lazyValue // the value of each slot that dependents see
	count  int         // how many can be planned
	edges  []graph.Edge
	graph  *graph.Graph
	// scope is the part that is planned; nil means all.
	scope *graph.Set

	kinds        cache[typeName, *infra.ServedKind]
	providers    cache[configName, *openProvider]
	calls        atomic.Int64
	providerTime atomic.Int64
	// retained is how many finished slots keep their decoded value for dependents.
	retained int

	mu          sync.Mutex
	problems    []v1alpha1.Problem
	warnings    problems.Warnings
	drifted     []expr.Ref
	inSync      []expr.Ref
	dataReads   []DataSourceRead
	memoUpdates []inventory.MemoUpdate
	notPlanned  int
}

// slot is one resource and the decision about it.
type slot struct {
	*inventory.Resource
	// removed means that the resource is to be removed, replace that its replacement was requested,
	// and createFirst that its successor is created before it is destroyed, because of the resource
	// itself or a dependent.
	removed, replace, createFirst bool

	// unchanged means that dependents see the value in the Inventory. cacheable means that they see
	// the value that will be in the Inventory once this plan's memos are stored.
	unchanged, cacheable bool
	ended                bool // with any result
	// settled means that there is nothing to do, and no provider was asked.
	settled  bool
	decision *decide.Decision
	// encoded is the encoded value that dependents see, once the slot has ended. compared means
	// that dependents also compare it with the prior value.
	encoded  []byte
	retained bool // it has ended and keeps its decoded value
	compared bool
	outcomes []outcome
	// cycle is the reference cycle that it is part of, if any.
	cycle string
	// movedFrom is the address whose state the slot continues: State is that state. movedAway means
	// that another slot does so with the state of this one.
	movedFrom *change.Address
	movedAway bool
	// forgotten is the slot of the resource that the object imports, if that is forgotten by this plan.
	forgotten *slot
	// leftover is the address that has taken the resource over already, and releaseTo the one that may.
	leftover, releaseTo *change.Address
	// moveProblem is why the state cannot move, and moveField where that is written.
	moveProblem, moveField string
	// users is how many dependents have not ended. widelyUsed means that there were many.
	users      int32
	widelyUsed bool
}

// lazyValue is the value of a slot that dependents see. It is computed on first use.
type lazyValue struct {
	once  sync.Once
	value cty.Value
	err   error
}

// outcome is a change with its sealed part.
type outcome struct {
	change *change.Change
	sealed []byte
}

// isDesired reports whether the resource should exist.
func (s *slot) isDesired() bool { return s.Object != nil && !s.removed }

// cache computes each value once, even under concurrent use.
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

// kind returns the served kind of a reference.
func (r *run) kind(ref expr.Ref) (*infra.ServedKind, error) {
	return r.kinds.get(typeName{ref.Kind, ref.Type}, func() (*infra.ServedKind, error) { return r.Providers.Kind(ref) })
}

// typeName names a resource or data source type.
type typeName struct {
	kind expr.RefKind
	name string
}

// configName names a ProviderConfig.
type configName struct{ provider, namespace, config string }

// openProvider is a configured provider with the revision of its configuration.
type openProvider struct {
	providerapi.Provider
	revision string
}

// open opens a provider once in a run, with its latest configuration. Otherwise a plan could use a ProviderConfig that
// was changed or deleted just before it.
func (r *run) open(ctx context.Context, name configName) (*openProvider, error) {
	return r.providers.get(name, func() (*openProvider, error) {
		provider, revision, err := r.Providers.OpenLatest(ctx, name.provider, name.namespace, name.config)
		if err != nil {
			return nil, err
		}
		return &openProvider{Provider: &meteredProvider{Provider: provider, clock: r.Clock, calls: &r.calls, took: &r.providerTime, onCall: r.opts.OnProviderCall}, revision: revision}, nil
	})
}
