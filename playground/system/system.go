// Package system starts a whole Atoll with real member clusters on one machine: a store for the
// members, one `atoll server` or several on one PostgreSQL, and a child process for each cluster.
// The playground and the whole-system tests use it.
//
// Servers of Atoll run beside the members, or each belongs to a member, as if every cluster ran one.
// In the second case a server ends with its member.
//
// All state is in one directory. A system that is started again in the same directory continues from
// there.
package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/playground/store"
)

// Config configures a System.
type Config struct {
	// Dir contains all state. It is created if it does not exist.
	Dir string
	// Servers is how many servers of Atoll to run beside the members; 0 means 1.
	// Several share a datastore.
	Servers int
	// Stretched names the members that each have a server of Atoll; no other servers run. They
	// share a datastore, even if there is only one.
	Stretched []string
	// Datastore is the URL of the servers' datastore. If empty, a single server beside the
	// members uses SQLite, and otherwise StartAtoll starts a PostgreSQL for them.
	Datastore string
	// Kubelets gives each member one real node instead of simulated ones (see playground/node), and a network namespace, in which
	// its API server runs too. Images are the files of image archives for them. The program needs the role of
	// playground/kubelet.
	Kubelets bool
	Images   []string
	// Flags are additional flags of each server of Atoll.
	Flags []string
	// Progress, if set, is called with each step of each part during the start, possibly from
	// several goroutines at once.
	Progress func(part, step string)
}

// System is a running Atoll with its members.
type System struct {
	dir      string
	flags    []string
	servers  []serverSpec
	progress func(part, step string)
	store    *store.Store
	exits    chan Exit
	real     *realNodes // or nil

	mu        sync.Mutex
	datastore string
	database  *postgres.Server // started by startDatabase, otherwise nil
	atolls    []*atoll.Server  // nil where a server is not running
	members   map[string]*member.Cluster
}

// serverSpec is a server of Atoll: its name, and the member that it belongs to, if any.
type serverSpec struct{ name, member string }

// Exit is the unexpected exit of a part.
type Exit struct {
	// Part is a member or a server of Atoll.
	Part string
	Err  error
}

// Roles returns the child-process roles that a program must pass to child.Main before it uses a
// System.
func Roles() map[string]child.Role {
	return map[string]child.Role{
		member.RoleName:  member.Role,
		atoll.RoleName:   atoll.Role,
		atoll.KeeperName: atoll.Keeper, atoll.LauncherName: atoll.Launcher,
	}
}

// Open prepares the directory and opens the members' store. It starts no processes.
func Open(ctx context.Context, cfg Config) (*System, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	s := &System{
		dir: dir, flags: cfg.Flags, datastore: cfg.Datastore, progress: cfg.Progress, exits: make(chan Exit, 16),
		members: map[string]*member.Cluster{},
	}
	for _, m := range cfg.Stretched {
		s.servers = append(s.servers, serverSpec{name: "atoll-" + m, member: m})
	}
	if cfg.Kubelets {
		if err := node.Check(); err != nil {
			return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
		}
		s.real = &realNodes{images: cfg.Images, networks: map[string]*node.Network{}, nodes: map[string]*node.Node{}}
	}
	if len(cfg.Stretched) == 0 {
		for i := range max(cfg.Servers, 1) {
			s.servers = append(s.servers, serverSpec{name: besideName(i)})
		}
	}
	s.atolls = make([]*atoll.Server, len(s.servers))
	if s.progress == nil {
		s.progress = func(string, string) {}
	}
	if s.store, err = store.Open(ctx, filepath.Join(dir, "members.db")); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	return s, nil
}

// Kubeconfig returns the path of the administrator's kubeconfig for the first server.
func (s *System) Kubeconfig() string { return s.KubeconfigOf(0) }

// KubeconfigOf returns the same for the server with index i.
func (s *System) KubeconfigOf(i int) string {
	return filepath.Join(s.dir, s.servers[i].name, "admin.kubeconfig")
}

// Database returns the PostgreSQL that was started for the servers, or nil.
func (s *System) Database() *postgres.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.database
}

// REST returns the administrator's client configuration for the first server.
func (s *System) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("atoll: %w", err)
	}
	config.QPS = -1
	return config, nil
}

// StartMember starts a cluster and returns when it can run Pods. Several clusters may start
// concurrently.
func (s *System) StartMember(ctx context.Context, name string) (*member.Cluster, error) {
	cfg := member.Config{
		Name:     name,
		Dir:      filepath.Join(s.dir, "members", name),
		LogFile:  s.logFile(name),
		Progress: func(step string) { s.progress(name, step) },
	}
	var err error
	if s.real == nil {
		cfg.Store, err = s.store.Serve(ctx, name)
	} else {
		err = s.isolate(ctx, &cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", name, err)
	}
	cluster, err := member.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if s.real != nil {
		if err := s.startNode(ctx, cluster, cfg.Dir); err != nil {
			cluster.Kill()
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[name] = cluster
	go s.watchMember(cluster)
	return cluster, nil
}

// watchMember ends the member's server when the member exits, and reports an unexpected exit.
func (s *System) watchMember(cluster *member.Cluster) {
	<-cluster.Done()
	s.mu.Lock()
	unexpected := s.members[cluster.Name] == cluster
	if unexpected {
		delete(s.members, cluster.Name)
	}
	s.mu.Unlock()
	if s.real != nil && unexpected {
		s.real.kill(cluster.Name)
	}
	if i := s.serverOf(cluster.Name); i >= 0 && unexpected {
		s.KillServer(i)
	}
	if unexpected && cluster.Err() != nil {
		s.report(cluster.Name, cluster.Err())
	}
}

// Exits returns the channel of unexpected exits.
func (s *System) Exits() <-chan Exit { return s.exits }

func (s *System) report(part string, err error) {
	select {
	case s.exits <- Exit{part, err}:
	default: // no one receives
	}
}

// Join registers a member with Atoll through the code of `atoll join`, and returns when its Cluster
// is Ready.
func (s *System) Join(ctx context.Context, cluster *member.Cluster) error {
	config, err := s.REST()
	if err != nil {
		return fmt.Errorf("join %s: %w", cluster.Name, err)
	}
	config.WarningHandler = rest.NoWarnings{} // the Secret with the kubeconfig stays in Atoll, of course
	kubeconfig, err := os.ReadFile(cluster.Kubeconfig)
	if err != nil {
		return fmt.Errorf("join %s: %w", cluster.Name, err)
	}
	return join.Push(ctx, config, join.Options{
		Name:       cluster.Name,
		Kubeconfig: kubeconfig,
		Progress:   func(step string) { s.progress("atoll", "join: "+step) },
	})
}

// MemberNames returns the names of all clusters that were ever started in the directory, sorted.
func (s *System) MemberNames() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "members"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (s *System) logFile(name string) string { return filepath.Join(s.dir, "logs", name+".log") }

// Close stops Atoll, then the members, then their stores.
func (s *System) Close() error {
	errs := []error{s.StopAtoll()}
	s.mu.Lock()
	defer s.mu.Unlock()
	members := s.members
	s.members = map[string]*member.Cluster{} // their exits are expected
	if s.real != nil {
		errs = append(errs, s.real.close())
	}
	stopped := make(chan error)
	for _, m := range members {
		go func() { stopped <- m.Stop() }()
	}
	for range members {
		errs = append(errs, <-stopped)
	}
	if s.database != nil {
		errs = append(errs, s.database.Stop())
	}
	return errors.Join(append(errs, s.store.Close())...)
}
