// Package providercontroller installs the packages of Provider objects, knows the types that they have, and runs
// them with the configuration of ProviderConfigs. All servers are equal: each does this for itself.
//
// Run follows Providers. Registry answers the engine and the API that serves provider types. RunElected
// does the work that only one server does. DESIGN.md describes what happens to types whose Provider
// cannot be installed or is deleted.
package providercontroller

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

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/containment"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/plugin"
)

// Config configures a Registry. Directory and RunDirectory are required.
type Config struct {
	// Directory is this server's own directory for packages and for the data that survives a
	// restart. It is created if it does not exist.
	Directory string
	// RunDirectory is the parent of the processes' private directories. It is created if it does
	// not exist. Its path has at most 70 bytes, because of the limit for socket paths.
	RunDirectory string
	// Mirrors are the directories in which filesystem mirrors may be. If it is empty, none are
	// allowed.
	Mirrors []string
	// Development allows unverified programs.
	Development bool
	// Permit returns why a Provider must not be installed or run here, nil if it may be. nil permits all.
	Permit func(*v1alpha1.ProviderSpec) error
	// User is the user that providers run as; nil is the server's own.
	User *plugin.User
	// Users, unless User is set, gives each contained provider a user of its own, also among the Registries with
	// other UserScopes that share it.
	Users     *plugin.UserPool
	UserScope string
	// Launcher is the command that contains providers: see plugin.Config. Without it, only Providers with
	// spec.containment: None can be used.
	Launcher []string
	// Protected are paths that spec.files of a Provider must not reach: the server's data directory.
	Protected []string
	// Machine has the facts that decide how providers can be contained. Default: this machine.
	Machine *containment.Machine
	// Inherit names variables of the server's environment that providers inherit.
	Inherit []string
	// Keeper is the command of the keeper processes, which outlive a killed server and finish its
	// provider calls: see plugin.Config. Without it, the calls of a killed server are uncertain
	// to the next.
	Keeper []string
	// JournalKey is the file of the key that encrypts the answers to calls. Default: calls.key in
	// Directory.
	JournalKey string
	// Network configures the connections to mirrors and registries.
	Network packages.ClientConfig
	// Server is the name of this server in statuses.
	Server string
	// StoredResources returns the plural names of a group's resources that have stored objects. If
	// it is nil, deleted Providers are not finalized.
	StoredResources func(ctx context.Context, group string) ([]string, error)
	// Metrics may be nil.
	Metrics *Metrics
	// Log defaults to slog.Default, and Clock to the real clock.
	Log   *slog.Logger
	Clock clock.WithTicker
}

// Clients are the clients of the control plane.
type Clients struct {
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}

// Registry is this server's view of the Providers. It is safe for concurrent use.
type Registry struct {
	config    Config
	store     *packages.Store
	client    *packages.Client
	installer *packages.Installer
	host      *plugin.Host
	cache     diskCache
	instances *instancePool

	// Set by Connect.
	clients Clients
	objects cache.SharedIndexInformer
	queue   workqueue.TypedDelayingInterface[string]

	synced chan struct{} // closed once all Providers were processed

	mu             sync.Mutex
	entries        map[string]*providerEntry
	waiting        map[string]bool // Providers that existed at the start and are not processed yet
	table          *table
	rejectedGroups map[string]string // reasons by group, from the API that serves provider types
	changed        chan struct{}     // closed and replaced with each new table
	entryChanged   chan struct{}     // closed and replaced with each change of an entry
}

var _ infra.Providers = (*Registry)(nil)

// New opens the directories. Run starts the installations.
func New(config Config) (_ *Registry, err error) {
	if config.Directory == "" || config.RunDirectory == "" {
		return nil, errors.New("providers: Directory and RunDirectory are required")
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
			return nil, fmt.Errorf("resolve the provider mirror directory %s: %w", mirror, err)
		}
	}
	r := &Registry{
		config: config, synced: make(chan struct{}),
		entries: map[string]*providerEntry{}, changed: make(chan struct{}), entryChanged: make(chan struct{}), table: newTable(nil),
	}
	r.instances = newInstancePool(config.Clock)
	if r.cache, err = openDiskCache(config.Directory); err != nil {
		return nil, err
	}
	if r.store, err = packages.OpenStore(filepath.Join(config.Directory, "store"), config.Clock); err != nil {
		return nil, err
	}
	if r.host, err = r.newHost(); err != nil {
		return nil, errors.Join(err, r.store.Close())
	}
	if err := r.restrictDirectories(); err != nil {
		r.host.Close()
		return nil, errors.Join(err, r.store.Close())
	}
	if config.Metrics != nil {
		config.Metrics.registry.Store(r)
	}
	r.client = packages.NewClient(config.Network)
	r.installer = packages.New(r.store, r.client, packages.Limits{})
	return r, nil
}

// newHost creates the provider host, with the journal of calls.
func (r *Registry) newHost() (_ *plugin.Host, err error) {
	// The host keeps the real clock, because processes take real time.
	config := plugin.Config{Directory: r.config.RunDirectory, User: r.config.User, Inherit: r.config.Inherit, Keeper: r.config.Keeper,
		Users: r.config.Users, UserScope: r.config.UserScope, Launcher: r.config.Launcher, Machine: r.config.Machine}
	if len(config.Keeper) > 0 {
		config.Journal = filepath.Join(r.config.Directory, "calls")
		if config.JournalKey, err = plugin.ReadKey(cmp.Or(r.config.JournalKey, config.Journal+".key")); err != nil {
			return nil, fmt.Errorf("open the key of the provider call journal: %w", err)
		}
	}
	return plugin.New(config)
}

// Journal returns the name of the journal of calls, or the empty string; see plancontroller.Config.
func (r *Registry) Journal() string { return r.host.Journal() }

// Acknowledge drops the journalled answer to a call after the caller has stored it.
func (r *Registry) Acknowledge(call string) error { return r.host.Acknowledge(call) }

// restrictDirectories denies other users access to the directories. If providers run as another
// user, that user may pass through.
func (r *Registry) restrictDirectories() error {
	mode := os.FileMode(0o700)
	if r.config.User != nil || r.config.Users != nil {
		mode = 0o711
	}
	store := filepath.Join(r.config.Directory, "store")
	for _, dir := range []string{r.config.RunDirectory, store, filepath.Join(store, "packages")} {
		if err := os.Chmod(dir, mode); err != nil {
			return fmt.Errorf("restrict access to provider directories: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(store, "records"), 0o700); err != nil {
		return fmt.Errorf("restrict access to provider directories: %w", err)
	}
	return nil
}

// Connect sets the clients. It must be called once, before Run, RunElected and Open.
func (r *Registry) Connect(api Clients) {
	r.clients = api
	r.objects = newInformer(api.Dynamic)
	r.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "infra_providers", Clock: r.config.Clock})
}

// Close stops all providers. No process remains when it returns, except keepers that finish calls.
// Run must have returned.
func (r *Registry) Close() error {
	r.host.Close()
	r.client.Close()
	return r.store.Close()
}

// Synced is closed once every Provider that existed at the start is served, or has failed to
// install.
func (r *Registry) Synced() <-chan struct{} { return r.synced }

// Changed returns a channel that is closed when the served types or their versions may have changed
// since the call.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// SetRejectedGroups sets the groups that the API does not serve, with the reasons.
func (r *Registry) SetRejectedGroups(reasons map[string]string) {
	r.mu.Lock()
	r.rejectedGroups = reasons
	r.mu.Unlock()
	r.enqueueAll()
}

// enqueueAll enqueues every Provider.
func (r *Registry) enqueueAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue == nil {
		return
	}
	for name := range r.entries {
		r.queue.Add(name)
	}
}
