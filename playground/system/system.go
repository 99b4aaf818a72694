// Package system starts a whole Atoll with real member clusters on one
// machine: a store for the members, one `atoll server` or several on one
// PostgreSQL, and a child process for each cluster. The playground and the
// whole-system tests both begin here.
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
	// Servers is how many servers of Atoll to run; 0 means 1. Several share a
	// datastore.
	Servers int
	// Datastore is the URL of it. Empty means SQLite for one server, and for
	// several a PostgreSQL that is started for them.
	Datastore string
	// Progress, if set, is told what each part does while it starts. It may be
	// called from several goroutines at once.
	Progress func(part, step string)
}

// System is an Atoll that runs, and its members.
type System struct {
	dir      string
	servers  int
	progress func(part, step string)
	store    *store.Store

	mu        sync.Mutex
	datastore string
	database  *postgres.Server // that was started for the servers
	atolls    []*atoll.Server  // nil where one does not run
	members   map[string]*member.Cluster
}

// Roles are the roles of child processes that a program which starts a System
// must give to child.Main.
func Roles() map[string]child.Role {
	return map[string]child.Role{
		member.RoleName: member.Role,
		atoll.RoleName:  atoll.Role,
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
		dir: dir, servers: max(cfg.Servers, 1), datastore: cfg.Datastore, progress: cfg.Progress,
		members: map[string]*member.Cluster{},
	}
	s.atolls = make([]*atoll.Server, s.servers)
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
	return filepath.Join(s.dir, ServerName(i), "admin.kubeconfig")
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
	return cluster, nil
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

// Done returns a channel that gets the reason when a part of the system ends
// unasked.
func (s *System) Done() <-chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(chan error, 1)
	report := func(done <-chan struct{}, err func() error) {
		<-done
		if err := err(); err != nil {
			select {
			case out <- err:
			default: // the first one is the reason
			}
		}
	}
	for _, server := range s.atolls {
		if server != nil {
			go report(server.Done(), server.Err)
		}
	}
	for _, m := range s.members {
		go report(m.Done(), m.Err)
	}
	return out
}

// Close stops Atoll, then the members, then what they stored in.
func (s *System) Close() error {
	errs := []error{s.StopAtoll()}
	s.mu.Lock()
	defer s.mu.Unlock()
	stopped := make(chan error)
	for _, m := range s.members {
		go func() { stopped <- m.Stop() }()
	}
	for range s.members {
		errs = append(errs, <-stopped)
	}
	if s.database != nil {
		errs = append(errs, s.database.Stop())
	}
	return errors.Join(append(errs, s.store.Close())...)
}
