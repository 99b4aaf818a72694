// Package plancontroller carries out what Plan, Apply and SyncPolicy objects request: it computes plans, keeps
// their conditions, runs applies, follows policies and deletes old history. Of all servers that share a
// datastore, one at a time leads and does so.
//
// It decides by a snapshot of a namespace's objects, and uses the engine, the API and the clock. The rooms for
// the inventory, the approval, the workloads and the storage do not know it.
package plancontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/applier"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/feed"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/placing"
	"github.com/atoll-dev/atoll/infra/planner"
)

// Config is the configuration of a Controller.
type Config struct {
	// REST connects to the control plane with full rights. Required.
	REST *rest.Config
	// Values reads the values that specs take from other objects, with the rights of their authors. Required.
	Values infra.ValueReader
	// Keyspace is where the control plane stores its objects. Required.
	Keyspace *clientv3.Client
	// Prefix precedes all keys of the control plane. Default: /registry.
	Prefix string
	// Decode returns the JSON of a stored value. It may be nil if values are never encrypted.
	Decode feed.Decode
	// Providers and Types describe the installed providers. Required.
	Providers infra.Providers
	Types     feed.Types
	// Language evaluates references. Required.
	Language *expr.Language
	// LeaderRunnables also run in the server that leads, until their contexts end.
	LeaderRunnables []func(context.Context) error
	// Log defaults to slog.Default, Clock to the real one, Identity to one of its own.
	Log      *slog.Logger
	Clock    clock.WithTicker
	Identity string
	// SingleServer declares that no other server can use the datastore while this one does. Leadership can
	// then not be lost, however late the Lease is renewed.
	SingleServer bool
	// Metrics may be nil.
	Metrics *Metrics
	// Journal names the providers' call journal, if that outlives the server. After a restart, calls that
	// were begun under the same name are resumed. Leave it empty for a server that keeps no journal: to its
	// successor, the outcome of its unfinished calls is uncertain.
	Journal string
	// Acknowledge, if not nil, is called with each call whose outcome has been stored. Its answer need not be
	// kept any longer.
	Acknowledge func(call string) error
	// OnLargeRun, if not nil, is called when a plan or an apply turns out to need thousands of provider
	// calls. The function it returns is called when the run has ended, and may take a second to release
	// memory. retained reports that much of what the run allocates stays in use, as with an apply.
	OnLargeRun func(retained bool) (done func())
}

// Controller runs plans and applies while it leads.
type Controller struct {
	cfg     Config
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

// New returns a Controller that does nothing until Run.
func New(cfg Config) (*Controller, error) {
	switch {
	case cfg.REST == nil:
		return nil, errors.New("plancontroller: Config.REST is required: set the client configuration of the control plane")
	case cfg.Values == nil:
		return nil, errors.New("plancontroller: Config.Values is required: create them with access.NewValues")
	case cfg.Keyspace == nil:
		return nil, errors.New("plancontroller: Config.Keyspace is required: set the client of the workspace's keyspace")
	case cfg.Providers == nil || cfg.Types == nil:
		return nil, errors.New("plancontroller: Config.Providers and Config.Types are required: set the registry of installed providers")
	case cfg.Language == nil:
		return nil, errors.New("plancontroller: Config.Language is required: create one with expr.New")
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
		// A restarted server is a new candidate: its in-memory state is gone.
		cfg.Identity = host + "_" + string(uuid.NewUUID())
	}
	if cfg.Journal == "" {
		cfg.Journal = cfg.Identity + "_" + string(uuid.NewUUID())
	}
	// The control plane has priority and fairness of its own. A client-side rate limit would add latency
	// without protecting it.
	cfg.REST = rest.CopyConfig(cfg.REST)
	cfg.REST.QPS, cfg.REST.Burst = -1, -1
	cfg.REST.UserAgent = apistore.FieldManager
	kube, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("plancontroller: create a client of the control plane: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("plancontroller: create a client of the control plane: %w", err)
	}
	return &Controller{cfg: cfg, kube: kube, dynamic: dyn}, nil
}

// onLargeRun wraps Config.OnLargeRun so that the inventory is compacted before memory is released.
func (c *Controller) onLargeRun(resources *inventory.Inventory) func(bool) func() {
	if c.cfg.OnLargeRun == nil {
		return nil
	}
	return func(retained bool) func() {
		done := c.cfg.OnLargeRun(retained)
		return func() {
			resources.Compact()
			done()
		}
	}
}

// runSession follows the keyspace and reconciles until ctx ends. The inventory belongs to this session: it
// starts empty, because nothing that happened before was observed here.
func (c *Controller) runSession(ctx context.Context) error {
	objects := apistore.NewObjects(c.dynamic, c.kube, c.cfg.Clock)
	resources := inventory.New(c.cfg.Language, c.cfg.Providers)
	evaluator := evaluate.Evaluator{Language: c.cfg.Language, Values: c.cfg.Values, Functions: c.cfg.Providers}
	workloads := placing.New(c.dynamic, c.cfg.Clock)
	s := newSession(sessionConfig{
		dynamic: c.dynamic, kube: c.kube, inventory: resources, workloads: workloads,
		clock: c.cfg.Clock, log: c.cfg.Log, metrics: c.cfg.Metrics,
	})
	follower := feed.New(feed.Config{
		Keyspace: c.cfg.Keyspace, Prefix: c.cfg.Prefix, Decode: c.cfg.Decode, Types: c.cfg.Types, Inventory: resources,
		Clock: c.cfg.Clock, Log: c.cfg.Log, OnWrite: s.observeWrite,
	})
	r := newReconciler(s, engineConfig{
		engine: struct {
			*planner.Planner
			*applier.Applier
		}{
			&planner.Planner{Inventory: resources, Evaluator: evaluator, Providers: c.cfg.Providers, Clock: c.cfg.Clock},
			&applier.Applier{
				Inventory: resources, Evaluator: evaluator, Providers: c.cfg.Providers, States: apistore.NewStates(c.dynamic),
				Objects: objects, Workloads: workloads, Clock: c.cfg.Clock, Log: c.cfg.Log,
			},
		},
		feed: follower, objects: objects, types: c.cfg.Types, kinds: c.cfg.Providers, language: c.cfg.Language,
		journal: c.cfg.Journal, acknowledge: c.cfg.Acknowledge, onLargeRun: c.onLargeRun(resources), impersonate: c.impersonate,
	})
	defer c.cfg.Metrics.lead(&measuredSession{s.caches, follower})()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follower.Run(ctx) })
	group.Go(func() error { return r.run(ctx) })
	return group.Wait()
}

// impersonate returns a client that has only the rights of a user.
func (c *Controller) impersonate(user *v1alpha1.Person) (dynamic.Interface, error) {
	if user == nil || user.Username == "" {
		return nil, errors.New("spec.author is not set")
	}
	config := rest.CopyConfig(c.cfg.REST)
	config.Impersonate = rest.ImpersonationConfig{UserName: user.Username, UID: user.UID, Groups: user.Groups}
	return dynamic.NewForConfig(config)
}
