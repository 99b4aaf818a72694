// Package provider runs providers as child processes and speaks with them. It is the
// only room that knows the plug-in protocol; DESIGN.md says what is done so that a
// provider that dies, hangs, floods or lies costs its own calls and nothing else.
package provider

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

	"github.com/atoll-dev/atoll/infra/contract"
)

// Config is how a Host runs providers. Only Directory has to be set.
type Config struct {
	// Directory is the Host's alone. Each process gets a private directory below it, and what
	// a former Host left there is removed. Short enough for sockets: 70 bytes at most.
	Directory string
	// User, if not nil, is whom processes run as. It takes root.
	User *User
	// Inherit names variables of this process's environment that providers get too, such as HTTPS_PROXY.
	Inherit []string
	// StartTimeout bounds the start of a process, with its schema and its configuration. A minute if 0.
	StartTimeout time.Duration
	// StopGrace is how long calls have to end once a process is asked to stop. 10 s if 0.
	StopGrace time.Duration
	// Idle is after how long without calls a process is stopped. 5 minutes if 0.
	Idle time.Duration
	// RecycleAfter is how many calls a process serves before another takes its place:
	// libraries of providers keep some memory of each. 20,000 if 0.
	RecycleAfter int
	// Keeper is a command that does nothing but call Keep: this executable with some argument, as
	// /proc/self/exe where there is that, which an upgrade does not change under a server that runs. With
	// it, calls that have a name are made once only, and survive this process. It takes Journal.
	Keeper []string
	// Journal is the directory for what is known of such calls. It has to last as long as what asks for
	// them again, and a restart must find the same. What they gave back is sealed with JournalKey: see ReadKey.
	Journal    string
	JournalKey []byte
	// Clock is for back-off, rates and idleness. The real one if nil.
	Clock clock.WithDelayedExecution
}

// User is whom a process runs as.
type User struct{ UID, GID uint32 }

// Binary is one version of a provider, installed.
type Binary struct {
	// Name is what the provider is called in errors.
	Name string
	// Path of the executable.
	Path string
}

// Settings are what an Instance is opened with.
type Settings struct {
	// Catalog of the binary, if it is there already. Else it is asked for.
	Catalog *Catalog
	// Config is of the type that the Catalog's Config implies, wholly known. Null is as
	// if every argument were null.
	Config cty.Value
	Limits Limits
	// Idle and RecycleAfter are as in Config, which decides if they are 0.
	Idle         time.Duration
	RecycleAfter int
	// Env are variables for the process, beside those that every one gets. TF_LOG* is off and GOGC 400
	// unless said otherwise here.
	Env map[string]string
	// Output, if not nil, gets all that the process writes to its standard error. It may have secrets
	// in it. It is called by several goroutines, one at a time.
	Output io.Writer
}

// Limits keep a provider, and what it talks to, from being overrun.
type Limits struct {
	// Parallel is how many calls run at once that can reach what the provider manages, and how many of those that
	// validate or upgrade. 10 if 0.
	Parallel int
	// PerSecond and Burst bound the calls that can reach what the provider manages. No bound if PerSecond is 0; Burst is Parallel if 0.
	PerSecond float64
	Burst     int
	// CallTimeout is after how long a call counts as hung. 10 minutes if 0.
	CallTimeout time.Duration
	// ApplyTimeout is the same of Apply. 3 hours if 0: there are resources that take two.
	ApplyTimeout time.Duration
}

// Host runs the processes of any number of providers.
type Host struct {
	config  Config
	spawner *spawner
	journal *journal // nil without a keeper
	name    string   // of the journal
	sweeps  *sweeps

	mu      sync.Mutex
	closed  bool
	running map[*Instance]struct{}
}

// errStopping is of what is asked of a Host, or an Instance, that is being closed.
var errStopping = errors.New("Atoll is stopping it")

// longestDirectory leaves room for what is appended to it: a socket's path has
// 107 bytes at most.
const longestDirectory = 70

// New makes a Host. Nothing runs until something is opened.
func New(config Config) (*Host, error) {
	config = config.withDefaults()
	dir, err := filepath.Abs(config.Directory)
	if err != nil || config.Directory == "" {
		return nil, errors.New("providers need a directory: set Directory")
	}
	if len(dir) > longestDirectory {
		return nil, fmt.Errorf("the directory of providers %s is longer than %d bytes, and their sockets would not fit: choose a shorter one", dir, longestDirectory)
	}
	config.Directory = dir
	// Who runs as another user has to get through, and sees nothing.
	if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711)); err != nil {
		return nil, fmt.Errorf("making the directory of providers: %w", err)
	}
	if err := removeLeftovers(dir); err != nil {
		return nil, fmt.Errorf("removing what a former server left in the directory of providers: %w", err)
	}
	h := &Host{config: config, running: map[*Instance]struct{}{}}
	if (len(config.Keeper) > 0) != (config.Journal != "") {
		return nil, errors.New("a keeper of providers' calls needs a journal, and a journal a keeper: set both Keeper and Journal, or neither")
	}
	if config.Journal != "" {
		if h.journal, err = openJournal(config.Journal, config.JournalKey); err == nil {
			h.name, err = h.journal.identify()
		}
		if err != nil {
			return nil, fmt.Errorf("opening the journal of providers' calls: %w", err)
		}
		h.sweeps = startSweeps(h.journal, config.Clock)
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

// privatePrefix begins the names of the processes' directories.
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

// removeUnlocked removes a private directory, unless the keeper of a former server still works
// there. Then the keeper does, once it is done.
func removeUnlocked(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if locked, err := tryLock(f); err != nil || !locked {
		return err
	}
	return os.RemoveAll(dir)
}

// admit has Close close what runs, unless it is too late for anything to run.
func (h *Host) admit(i *Instance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("%w: %w", contract.ErrNotAsked, errStopping)
	}
	h.running[i] = struct{}{}
	return nil
}

func (h *Host) dismiss(i *Instance) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, i)
}

// Catalog starts the provider, asks what it has, and stops it.
func (h *Host) Catalog(ctx context.Context, binary Binary, env map[string]string) (*Catalog, error) {
	i := newInstance(h, binary, Settings{Env: env})
	i.schemaOnly = true
	if err := h.admit(i); err != nil {
		return nil, fmt.Errorf("asking provider %s what it has: %w", binary.Name, err)
	}
	defer i.Close()
	if _, err := i.open(ctx); err != nil {
		return nil, err
	}
	return i.catalog, nil
}

// Open starts the provider and configures it. If it refuses its configuration, the
// diagnostics have its reasons and there is no Instance. They can have warnings even
// so.
func (h *Host) Open(ctx context.Context, binary Binary, settings Settings) (*Instance, contract.Diagnostics, error) {
	i := newInstance(h, binary, settings)
	if err := h.admit(i); err != nil {
		return nil, nil, fmt.Errorf("opening provider %s: %w", binary.Name, err)
	}
	diagnostics, err := i.open(ctx)
	if err != nil || diagnostics.Failed() {
		i.Close()
		return nil, diagnostics, err
	}
	return i, diagnostics, nil
}

// Close closes every Instance. When it returns nothing of a provider runs any more, unless a keeper
// finishes calls that have names.
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
	h.spawner.close()
	h.sweeps.stop()
}
