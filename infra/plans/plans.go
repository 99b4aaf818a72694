// Package plans runs plans and applies as their objects in the API ask for: it keeps the engine's World at what is
// written (Feed), plans what a Plan asks for, judges who has approved of it, carries out what an Apply asks
// for, and follows policies. One server of all does so at a time.
//
// Providers come from outside, by infra.Providers and Types.
package plans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/reference"
)

// Config says what Plans need.
type Config struct {
	// REST reaches the control plane with full rights. Required.
	REST *rest.Config
	// Keyspace is the one that the control plane stores in. Required.
	Keyspace *clientv3.Client
	// Prefix is before all keys of the control plane; /registry if empty.
	Prefix string
	// Decode gives the JSON of stored values; nil if none is ever encrypted.
	Decode Decode
	// Providers and Types are what is installed. Required.
	Providers infra.Providers
	Types     Types
	// Language of references. Required.
	Language *reference.Language
	// Elected run in the server that leads, besides, until their contexts end.
	Elected []func(context.Context) error
	// Log defaults to slog.Default, Clock to the real one, Identity to one of its own.
	Log      *slog.Logger
	Clock    clock.WithTicker
	Identity string
	// Alone says that no other server can have the datastore while this one has it: there is nobody to lose
	// a term to, however late a renewal of the Lease is.
	Alone bool
	// Journal names where providers keep what was asked of them, if that outlives the server: after a restart, calls that
	// were begun under the same name are asked for again. Empty is of a server that forgets them: what it had
	// begun is uncertain to the next.
	Journal string
	// Acknowledge, if not nil, is told of each call of which the outcome is stored: its answer need not be kept any
	// longer.
	Acknowledge func(call string) error
	// Large, if not nil, is called when a plan or an apply turns out to be large: thousands of calls of providers. What
	// it returns is called when that has ended, and may take a second to give the memory back. Of what an apply
	// makes, much stays.
	Large func(stays bool) (over func())
}

// Plans runs plans and applies while it leads.
type Plans struct {
	cfg     Config
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

// New gives Plans that do nothing until Run.
func New(cfg Config) (*Plans, error) {
	switch {
	case cfg.REST == nil:
		return nil, errors.New("plans: Config.REST is missing: say how to reach the control plane")
	case cfg.Keyspace == nil:
		return nil, errors.New("plans: Config.Keyspace is missing: pass the client of the workspace's keyspace")
	case cfg.Providers == nil || cfg.Types == nil:
		return nil, errors.New("plans: Config.Providers or Config.Types is missing: pass what knows the providers that are installed")
	case cfg.Language == nil:
		return nil, errors.New("plans: Config.Language is missing: make one by reference.New")
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "/registry"
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "atoll"
		}
		// A restarted server is another one: what it remembers is gone.
		cfg.Identity = host + "_" + string(uuid.NewUUID())
	}
	if cfg.Journal == "" {
		cfg.Journal = cfg.Identity + "_" + string(uuid.NewUUID())
	}
	// The control plane has priority and fairness of its own; a limit in the client would only delay
	// without protecting anybody.
	cfg.REST = rest.CopyConfig(cfg.REST)
	cfg.REST.QPS, cfg.REST.Burst = -1, -1
	cfg.REST.UserAgent = manager
	kube, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("plans: make a client of the control plane: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("plans: make a client of the control plane: %w", err)
	}
	return &Plans{cfg: cfg, kube: kube, dynamic: dyn}, nil
}

// large is Config.Large, if memory is to be given back: what stays is written anew before, side by side.
func (p *Plans) large(world *infra.Inventory) func(bool) func() {
	if p.cfg.Large == nil {
		return nil
	}
	return func(stays bool) func() {
		over := p.cfg.Large(stays)
		return func() {
			world.Compact()
			over()
		}
	}
}

// term follows what is written and does what is asked for until ctx ends. The World is of this term: what
// happened before it, nobody here has seen.
func (p *Plans) term(ctx context.Context) error {
	api := newResources(p.dynamic)
	objects := &objectStore{dynamic: p.dynamic, kube: p.kube, clock: p.cfg.Clock}
	world := infra.NewInventory(p.cfg.Language, p.cfg.Providers)
	engine := &infra.Engine{
		Inventory: world, Language: p.cfg.Language, Providers: p.cfg.Providers,
		Values: &valueStore{kube: p.kube, dynamic: p.dynamic, discovery: memory.NewMemCacheClient(p.kube.Discovery())},
		States: &stateStore{api: api.states}, Objects: objects, Clock: p.cfg.Clock, Log: p.cfg.Log,
	}
	workloads := newPlacements(p.dynamic, p.cfg.Clock)
	engine.Workloads = workloads
	d := newDesk(deskConfig{
		placements: workloads,
		api:        api, dynamic: p.dynamic, kube: p.kube, engine: engine, world: world, objects: objects,
		types: p.cfg.Types, language: p.cfg.Language, clock: p.cfg.Clock, log: p.cfg.Log, journal: p.cfg.Journal, acknowledge: p.cfg.Acknowledge, large: p.large(world), kinds: p.cfg.Providers, as: p.as,
	})
	feed := NewFeed(FeedConfig{
		Keyspace: p.cfg.Keyspace, Prefix: p.cfg.Prefix, Decode: p.cfg.Decode, Types: p.cfg.Types, World: world,
		Clock: p.cfg.Clock, Log: p.cfg.Log, Written: d.written,
	})
	d.feed = feed
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return feed.Run(ctx) })
	group.Go(func() error { return d.run(ctx) })
	return group.Wait()
}

// as gives a client with the rights of a person alone.
func (p *Plans) as(who *v1alpha1.Person) (dynamic.Interface, error) {
	if who == nil || who.Username == "" {
		return nil, errors.New("it does not say who made it")
	}
	config := rest.CopyConfig(p.cfg.REST)
	config.Impersonate = rest.ImpersonationConfig{UserName: who.Username, UID: who.UID, Groups: who.Groups}
	return dynamic.NewForConfig(config)
}
