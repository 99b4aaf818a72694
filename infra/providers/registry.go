// Package providers installs what Provider objects name, knows which types they have, and
// runs them as ProviderConfigs say. Every server does this for itself: all are equal.
//
// It follows Providers (Run), answers the engine and whoever serves their types
// (Registry), and does what one server does for all (RunElected). DESIGN.md
// says what becomes of types whose Provider cannot be installed, or is deleted.
package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/install"
	"github.com/atoll-dev/atoll/infra/provider"
)

// Config is what a Registry needs. Directory and RunDirectory have to be set.
type Config struct {
	// Directory is this server's own, and made if it is missing: packages, and what is known from
	// before a restart.
	Directory string
	// RunDirectory is where processes have their private places. It is made if it is missing; 70
	// bytes at most, or sockets would not fit.
	RunDirectory string
	// Mirrors are the directories below which filesystem mirrors may be. None may be anywhere if
	// there are none.
	Mirrors []string
	// Development lets programs be run that nobody has verified.
	Development bool
	// User is whom providers run as; nil is the server's own.
	User *provider.User
	// Inherit names variables of the server's environment that providers get, too.
	Inherit []string
	// Keeper is the command that runs keepers of providers' calls, which outlive a server that is killed: see
	// provider.Config. Without it, what a killed server had begun is uncertain to the next.
	Keeper []string
	// Network is how mirrors and registries are spoken with.
	Network install.ClientConfig
	// Server is what this server is called in statuses.
	Server string
	// Stored tells of which resources of a group anything is stored, by their plural names.
	// Nil leaves a Provider that is deleted where it is.
	Stored func(ctx context.Context, group string) ([]string, error)
	// Log defaults to slog.Default, Clock to the real one.
	Log   *slog.Logger
	Clock clock.WithTicker
}

// API is how the control plane is reached.
type API struct {
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}

// Registry is the Providers as this server has them. It is safe for concurrent use.
type Registry struct {
	config    Config
	store     *install.Store
	client    *install.Client
	installer *install.Installer
	host      *provider.Host
	memory    memory
	opened    *opened

	// Set by Connect.
	api     API
	objects cache.SharedIndexInformer
	queue   workqueue.TypedDelayingInterface[string]

	synced chan struct{} // closed once all Providers were looked at

	mu      sync.Mutex
	entries map[string]*entry
	waiting map[string]bool // Providers that were there at the start, and are still to be looked at
	table   *table
	refused map[string]string // groups, by whoever serves kinds
	changed chan struct{}     // closed and made anew with each table
	moved   chan struct{}     // the same with each change of an entry
}

var _ infra.Providers = (*Registry)(nil)

// New opens the directories. Nothing is installed until Run.
func New(config Config) (_ *Registry, err error) {
	if config.Directory == "" || config.RunDirectory == "" {
		return nil, errors.New("providers need directories: set Directory and RunDirectory")
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	config.Server = cmp.Or(config.Server, "this server")
	config.Mirrors = slices.Clone(config.Mirrors)
	for i, mirror := range config.Mirrors {
		if config.Mirrors[i], err = filepath.Abs(mirror); err != nil {
			return nil, fmt.Errorf("find the directory of provider mirrors %s: %w", mirror, err)
		}
	}
	r := &Registry{
		config: config, synced: make(chan struct{}),
		entries: map[string]*entry{}, changed: make(chan struct{}), moved: make(chan struct{}), table: newTable(nil),
	}
	r.opened = newOpened(config.Clock)
	if r.memory, err = openMemory(config.Directory); err != nil {
		return nil, err
	}
	if r.store, err = install.OpenStore(filepath.Join(config.Directory, "store"), config.Clock); err != nil {
		return nil, err
	}
	if r.host, err = r.newHost(); err != nil {
		return nil, errors.Join(err, r.store.Close())
	}
	if err := r.closeToOthers(); err != nil {
		r.host.Close()
		return nil, errors.Join(err, r.store.Close())
	}
	r.client = install.NewClient(config.Network)
	r.installer = install.New(r.store, r.client, install.Limits{})
	return r, nil
}

// newHost has the journal of calls beside the key that it is sealed with.
func (r *Registry) newHost() (_ *provider.Host, err error) {
	// Its clock stays the real one: it is for processes, which take real time.
	config := provider.Config{Directory: r.config.RunDirectory, User: r.config.User, Inherit: r.config.Inherit, Keeper: r.config.Keeper}
	if len(config.Keeper) > 0 {
		config.Journal = filepath.Join(r.config.Directory, "calls")
		if config.JournalKey, err = provider.ReadKey(config.Journal + ".key"); err != nil {
			return nil, fmt.Errorf("open the key of the journal of providers' calls: %w", err)
		}
	}
	return provider.New(config)
}

// Journal is what the journal of calls is called, empty if there is none; see plans.Config.
func (r *Registry) Journal() string { return r.host.Journal() }

// Acknowledge forgets what a provider answered to a call: it is stored.
func (r *Registry) Acknowledge(call string) error { return r.host.Acknowledge(call) }

// closeToOthers leaves the directories to their owner, or lets through who runs providers, if that is
// another user.
func (r *Registry) closeToOthers() error {
	mode := os.FileMode(0o700)
	if r.config.User != nil {
		mode = 0o711
	}
	store := filepath.Join(r.config.Directory, "store")
	for _, dir := range []string{r.config.RunDirectory, store, filepath.Join(store, "packages")} {
		if err := os.Chmod(dir, mode); err != nil {
			return fmt.Errorf("keep others out of providers' directories: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(store, "records"), 0o700); err != nil {
		return fmt.Errorf("keep others out of providers' directories: %w", err)
	}
	return nil
}

// Connect says how to reach the control plane. It is called once, before Run, RunElected and Open.
func (r *Registry) Connect(api API) {
	r.api = api
	r.objects = newInformer(api.Dynamic)
	r.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: r.config.Clock})
}

// Close ends all providers. When it returns nothing of them runs any more, unless a keeper finishes calls.
// Run has returned by then.
func (r *Registry) Close() error {
	r.host.Close()
	r.client.Close()
	return r.store.Close()
}

// Synced is closed once every Provider that was there at the start is served, or known not to be.
func (r *Registry) Synced() <-chan struct{} { return r.synced }

// Changed is closed when other types may be served, or other versions of them, than at the
// time of the call.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// SetRefused takes in which groups are not served in the API, and why.
func (r *Registry) SetRefused(reasons map[string]string) {
	r.mu.Lock()
	r.refused = reasons
	r.mu.Unlock()
	r.lookAtAll()
}

// lookAtAll has every Provider looked at, and its status written.
func (r *Registry) lookAtAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue == nil {
		return
	}
	for name := range r.entries {
		r.queue.Add(name)
	}
}
