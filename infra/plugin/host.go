// Package plugin runs OpenTofu and Terraform providers as child processes and calls them. No
// other package knows the plug-in protocol. DESIGN.md describes how a provider that dies, hangs,
// floods its output or sends invalid answers is kept from affecting anything but its own calls.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/containment"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Config configures a Host. Only Directory is required.
type Config struct {
	// Directory belongs to this Host alone. Each process gets a private directory below it, and the
	// leftovers of a previous Host are removed. Sockets limit it to 70 bytes.
	Directory string
	// User, if not nil, is the user that processes run as. It requires root.
	User *User
	// Users, if not nil, gives each contained provider a user of its own, unless User is set. It
	// requires root. Hosts with different UserScopes share it: no two of their providers have the same
	// user.
	Users     *UserPool
	UserScope string
	// Launcher is a command that only calls Launch: this executable with an argument, as for Keeper.
	// Contained providers require it.
	Launcher []string
	// Machine has the facts that decide how providers can be contained. Default: this machine.
	Machine *containment.Machine
	// Inherit names environment variables that are passed on to providers, such as HTTPS_PROXY.
	Inherit []string
	// StartTimeout bounds the start of a process, including its schema and its configuration.
	// Default: 1 minute.
	StartTimeout time.Duration
	// StopGrace is the time that calls have to finish once a process is asked to stop. Default: 10
	// s.
	StopGrace time.Duration
	// Idle is the time without calls after which a process is stopped. Default: 5 minutes.
	Idle time.Duration
	// RecycleAfter is the number of calls after which a process is replaced, because provider
	// libraries retain some memory for each call. Default: 20,000.
	RecycleAfter int
	// Keeper is a command that only calls Keep: this executable with an argument. Where it exists,
	// use /proc/self/exe, which an upgrade does not replace under a running server. With a Keeper,
	// named calls are made at most once and survive this process. Keeper requires Journal.
	Keeper []string
	// Journal is the directory that records named calls. It must survive a restart and live as long
	// as the states that refer to its calls. Answers are encrypted with JournalKey; see ReadKey.
	Journal    string
	JournalKey []byte
	// Clock is used for back-off, rates and idle times. Default: the real clock.
	Clock clock.WithDelayedExecution
}

// User is the user that a process runs as.
type User struct{ UID, GID uint32 }

// Binary is an installed provider version.
type Binary struct {
	// Name identifies the provider in errors.
	Name string
	// Path is the path of the executable.
	Path string
	// Package is the directory of the package, which a contained provider can read. Empty is only the
	// executable.
	Package string
	// Containment restricts the process. Nil runs it with all rights of its user.
	Containment *containment.Spec
}

// Settings configure an Instance.
type Settings struct {
	// Catalog is the Catalog of the binary. If nil, it is loaded from the provider.
	Catalog *Catalog
	// Config has the type implied by the Catalog's Config and is wholly known. Null is equivalent
	// to null for every argument.
	Config cty.Value
	Limits Limits
	// Idle and RecycleAfter override those in Config unless they are 0.
	Idle         time.Duration
	RecycleAfter int
	// Env holds additional environment variables. They override the defaults TF_LOG*=off and
	// GOGC=400.
	Env map[string]string
	// Output, if not nil, receives everything that the process writes to its standard error,
	// possibly with secrets. Several goroutines write to it, one at a time.
	Output io.Writer
}

// Limits protect a provider, and the infrastructure behind it, from overload.
type Limits struct {
	// Parallel is the number of concurrent calls that can reach the infrastructure. As many
	// validations and upgrades can run beside them. Default: 10.
	Parallel int
	// PerSecond and Burst limit the rate of calls that can reach the infrastructure. PerSecond 0
	// means no limit; Burst defaults to Parallel.
	PerSecond float64
	Burst     int
	// CallTimeout is the time after which a call counts as hung. Default: 10 minutes.
	CallTimeout time.Duration
	// ApplyTimeout is the timeout of an Apply. Default: 3 hours, because some resources take two.
	ApplyTimeout time.Duration
}

// Host runs the processes of any number of providers.
type Host struct {
	config      Config
	spawner     *spawner
	journal     *journal // nil without a keeper
	journalName string
	sweeper     *sweeper

	mu      sync.Mutex
	closed  bool
	running map[*Instance]struct{}
}

// errStopping reports a call to a Host or an Instance that is being closed.
var errStopping = errors.New("Atoll is shutting the provider down")

// maxDirectoryLength leaves room for the socket's name: a socket path is limited to 107 bytes.
const maxDirectoryLength = 70

// New creates a Host. No process starts until Catalog or Open is called.
func New(config Config) (*Host, error) {
	config = config.withDefaults()
	dir, err := filepath.Abs(config.Directory)
	if err != nil || config.Directory == "" {
		return nil, errors.New("no directory for providers; set Directory")
	}
	if len(dir) > maxDirectoryLength {
		return nil, fmt.Errorf("the provider directory %s is longer than %d bytes, which leaves no room for socket paths; choose a shorter path", dir, maxDirectoryLength)
	}
	config.Directory = dir
	// Providers that run as another user must be able to pass through, but not to list it.
	if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711)); err != nil {
		return nil, fmt.Errorf("creating the provider directory: %w", err)
	}
	if err := removeLeftovers(dir); err != nil {
		return nil, fmt.Errorf("cleaning the provider directory of a previous server: %w", err)
	}
	h := &Host{config: config, running: map[*Instance]struct{}{}}
	if (len(config.Keeper) > 0) != (config.Journal != "") {
		return nil, errors.New("Keeper and Journal must be set together")
	}
	if config.Journal != "" {
		if h.journal, err = openJournal(config.Journal, config.JournalKey); err == nil {
			h.journalName, err = h.journal.identify()
		}
		if err != nil {
			return nil, fmt.Errorf("opening the journal of provider calls: %w", err)
		}
		h.sweeper = startSweeper(h.journal, config.Clock)
	}
	h.spawner = newSpawner()
	return h, nil
}

func (c Config) withDefaults() Config {
	if c.StartTimeout == 0 {
		c.StartTimeout = time.Minute
	}
	if c.StopGrace == 0 {
		c.StopGrace = 10 * time.Second
	}
	if c.Idle == 0 {
		c.Idle = 5 * time.Minute
	}
	if c.RecycleAfter == 0 {
		c.RecycleAfter = 20_000
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c
}

func (l Limits) withDefaults() Limits {
	if l.Parallel == 0 {
		l.Parallel = 10
	}
	if l.Burst == 0 {
		l.Burst = l.Parallel
	}
	if l.CallTimeout == 0 {
		l.CallTimeout = 10 * time.Minute
	}
	if l.ApplyTimeout == 0 {
		l.ApplyTimeout = 3 * time.Hour
	}
	return l
}

// privatePrefix is the prefix of the processes' directories.
const privatePrefix = "p-"

func removeLeftovers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), privatePrefix) {
			continue
		}
		if err := removeUnlocked(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeUnlocked removes a private directory unless the keeper of a previous server still works in
// it. That keeper removes it when it exits.
func removeUnlocked(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock(f)
	if locked, err := tryLock(f); err != nil || !locked {
		return err
	}
	return os.RemoveAll(dir)
}

// register adds an Instance to those that Close closes. It fails if the Host is closed already.
func (h *Host) register(i *Instance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("%w: %w", providerapi.ErrNotCalled, errStopping)
	}
	h.running[i] = struct{}{}
	return nil
}

func (h *Host) unregister(i *Instance) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, i)
}

// Catalog starts the provider, loads its schemas, and stops it.
func (h *Host) Catalog(ctx context.Context, binary Binary, env map[string]string) (*Catalog, error) {
	i := newInstance(h, binary, Settings{Env: env})
	i.schemaOnly = true
	if err := h.register(i); err != nil {
		return nil, fmt.Errorf("loading the schemas of provider %s: %w", binary.Name, err)
	}
	defer i.Close()
	if _, err := i.open(ctx); err != nil {
		return nil, err
	}
	return i.catalog, nil
}

// Open starts the provider and configures it. If the provider rejects its configuration, Open
// returns no Instance and the diagnostics have the reasons. The diagnostics can hold warnings in
// either case.
func (h *Host) Open(ctx context.Context, binary Binary, settings Settings) (*Instance, providerapi.Diagnostics, error) {
	i := newInstance(h, binary, settings)
	if err := h.register(i); err != nil {
		return nil, nil, fmt.Errorf("opening provider %s: %w", binary.Name, err)
	}
	diagnostics, err := i.open(ctx)
	if err != nil || diagnostics.Failed() {
		i.Close()
		return nil, diagnostics, err
	}
	return i, diagnostics, nil
}

// Close closes every Instance. When it returns, no provider process is left, except those in which
// a keeper finishes named calls.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	running := slices.Collect(maps.Keys(h.running))
	h.mu.Unlock()

	var closing sync.WaitGroup
	for _, i := range running {
		closing.Go(i.Close)
	}
	closing.Wait()
	if h.config.Users != nil && h.config.UserScope != "" {
		h.config.Users.release(h.config.UserScope)
	}
	h.spawner.close()
	h.sweeper.stop()
}
