// Package system starts a whole Atoll with real member clusters on one
// machine: a store for the members, one `atoll server` or several on one
// PostgreSQL, and a child process for each cluster. The playground and the
// whole-system tests both begin here.
//
// Servers of Atoll run beside the members, or each belongs to a member, as when
// every cluster runs one: then what ends the member ends its server.
//
// All state is under one directory. A system that is started again on it goes
// on where it was.
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

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/playground/store"
)

// Config says where and how.
type Config struct {
	// Dir for everything; made if missing.
	Dir string
	// Servers is how many servers of Atoll to run beside the members; 0 means 1.
	// Several share a datastore.
	Servers int
	// Stretched names the members that each have a server of Atoll, instead of
	// servers beside them. They share a datastore, even if there is only one.
	Stretched []string
	// Datastore is the URL of it. Empty means SQLite for one server beside the
	// members, and otherwise a PostgreSQL that is started for them.
	Datastore string
	// Flags that each server of Atoll gets besides.
	Flags []string
	// Progress, if set, is told what each part does while it starts. It may be
	// called from several goroutines at once.
	Progress func(part, step string)
}

// System is an Atoll that runs, and its members.
type System struct {
	dir      string
	flags    []string
	servers  []serverSpec
	progress func(part, step string)
	store    *store.Store
	ended    chan Ending

	mu        sync.Mutex
	datastore string
	database  *postgres.Server // that was started for the servers
	atolls    []*atoll.Server  // nil where one does not run
	members   map[string]*member.Cluster
}

// serverSpec is a server of Atoll: its name, and the member that it belongs to,
// if any.
type serverSpec struct{ name, member string }

// Ending is how a part ended that nobody had told to.
type Ending struct {
	// Part is a member or a server of Atoll.
	Part string
	Err  error
}

// Roles are the roles of child processes that a program which starts a System
// must give to child.Main.
func Roles() map[string]child.Role {
	return map[string]child.Role{
		member.RoleName:  member.Role,
		atoll.RoleName:   atoll.Role,
		atoll.KeeperName: atoll.Keeper,
	}
}

// Open prepares the directory and opens the members' store. Nothing runs yet.
func Open(ctx context.Context, cfg Config) (*System, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	s := &System{
		dir: dir, flags: cfg.Flags, datastore: cfg.Datastore, progress: cfg.Progress, ended: make(chan Ending, 16),
		members: map[string]*member.Cluster{},
	}
	for _, m := range cfg.Stretched {
		s.servers = append(s.servers, serverSpec{name: "atoll-" + m, member: m})
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

// Kubeconfig is the path of the kubeconfig of Atoll's administrator, by way of
// the first server.
func (s *System) Kubeconfig() string { return s.KubeconfigOf(0) }

// KubeconfigOf is the same by way of another one.
func (s *System) KubeconfigOf(i int) string {
	return filepath.Join(s.dir, s.servers[i].name, "admin.kubeconfig")
}

// Database is the PostgreSQL that was started for the servers, nil if none was.
func (s *System) Database() *postgres.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.database
}

// REST is a client configuration for Atoll's administrator.
func (s *System) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("atoll: %w", err)
	}
	config.QPS = -1
	return config, nil
}

// StartMember starts a cluster and returns when it can run Pods. Several may
// be started at once.
func (s *System) StartMember(ctx context.Context, name string) (*member.Cluster, error) {
	endpoint, err := s.store.Serve(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", name, err)
	}
	cluster, err := member.Start(ctx, member.Config{
		Name:     name,
		Dir:      filepath.Join(s.dir, "members", name),
		LogFile:  s.logFile(name),
		Store:    endpoint,
		Progress: func(step string) { s.progress(name, step) },
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[name] = cluster
	go s.watchMember(cluster)
	return cluster, nil
}

// watchMember has the server that belongs to a member end with it, however it
// ends.
func (s *System) watchMember(cluster *member.Cluster) {
	<-cluster.Done()
	s.mu.Lock()
	unasked := s.members[cluster.Name] == cluster
	if unasked {
		delete(s.members, cluster.Name)
	}
	s.mu.Unlock()
	if i := s.serverOf(cluster.Name); i >= 0 && unasked {
		s.KillServer(i)
	}
	if unasked && cluster.Err() != nil {
		s.report(cluster.Name, cluster.Err())
	}
}

// Ended tells of parts that ended unasked.
func (s *System) Ended() <-chan Ending { return s.ended }

func (s *System) report(part string, err error) {
	select {
	case s.ended <- Ending{part, err}:
	default: // nobody listens
	}
}

// Join registers a member with Atoll, by the code of `atoll join`, and returns
// when Atoll finds it Ready.
func (s *System) Join(ctx context.Context, cluster *member.Cluster) error {
	config, err := s.REST()
	if err != nil {
		return fmt.Errorf("join %s: %w", cluster.Name, err)
	}
	kubeconfig, err := os.ReadFile(cluster.Kubeconfig)
	if err != nil {
		return fmt.Errorf("join %s: %w", cluster.Name, err)
	}
	return fleet.Join(ctx, config, fleet.JoinOptions{
		Name:       cluster.Name,
		Kubeconfig: kubeconfig,
		Progress:   func(step string) { s.progress("atoll", "join: "+step) },
	})
}

// Known names the clusters that were ever started in the directory, ascending.
func (s *System) Known() ([]string, error) {
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

// Close stops Atoll, then the members, then what they stored in.
func (s *System) Close() error {
	errs := []error{s.StopAtoll()}
	s.mu.Lock()
	defer s.mu.Unlock()
	members := s.members
	s.members = map[string]*member.Cluster{} // those that end now were told to
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
