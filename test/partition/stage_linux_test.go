package partition_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// members are in a site of their own each, with a server of Atoll.
var members = []string{"east", "west", "north"}

// databaseSite is the site of the database.
const databaseSite = "database"

// Ports can be the same in all sites, like on separate machines.
const (
	storePort  = "2379"
	atollPort  = 7443
	memberPort = "7444"
)

// stage is a stretched Atoll.
type stage struct {
	once sync.Once
	err  error
	dir  string

	network   *network
	datastore string
	token     string
	processes []*child.Process // stopped last
	clusters  map[string]*member.Cluster

	mu      sync.Mutex
	servers map[string]*atoll.Server
}

// shared is started by the first test that needs it.
var shared = &stage{clusters: map[string]*member.Cluster{}, servers: map[string]*atoll.Server{}}

// stretched returns the stage, with the notes shared by all members. Each test leaves the stage as it found
// it.
func stretched(t *testing.T) *stage {
	t.Helper()
	shared.once.Do(func() {
		shared.network = newNetwork(t, append([]string{databaseSite}, members...)...)
		began := time.Now()
		shared.err = shared.start(func(step string) { t.Logf("%s: after %s", step, time.Since(began).Round(100*time.Millisecond)) })
	})
	switch {
	case shared.network == nil:
		t.Skip("no network: see the first test")
	case shared.err != nil:
		t.Fatalf("the stage did not start: %v", shared.err)
	}
	return shared
}

func (s *stage) start(report func(step string)) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// Not t.TempDir: the account that runs PostgreSQL must be able to enter the directory.
	if s.dir, err = os.MkdirTemp("", "atoll-partition-"); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return err
	}
	s.token = filepath.Join(s.dir, "token")
	if err := os.WriteFile(s.token, []byte("a token that the servers of this test share\n"), 0o600); err != nil {
		return err
	}
	if err := s.startDatabase(ctx); err != nil {
		return err
	}
	report("the database is running")
	var group errgroup.Group
	var mu sync.Mutex
	for _, name := range members {
		group.Go(func() error {
			cluster, err := s.startMember(ctx, name)
			report(name + " is running")
			mu.Lock()
			defer mu.Unlock()
			s.clusters[name] = cluster
			return err
		})
		group.Go(func() error {
			defer func() { report("the server of " + name + " is running") }()
			return s.startServer(ctx, name)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, name := range members {
		if err := s.join(ctx, name); err != nil {
			return err
		}
	}
	report("all members have joined")
	// This server may see the kinds that the leader installed a little later.
	for {
		_, err := s.kubectl(ctx, "atoll-west", notesManifest, "apply", "-f", "-")
		if err == nil {
			break
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "no matches for kind") {
			return err
		}
	}
	if _, err := s.kubectl(ctx, "atoll-west", "", "wait", "sharedapi/notes", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return err
	}
	report("the notes are shared")
	for _, name := range members {
		if _, err := s.kubectl(ctx, name, localManifest, "apply", "-f", "-"); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, name, "", "wait", "crd/shells.local.test.atoll.dev", "--for=condition=Established", "--timeout=60s"); err != nil {
			return err
		}
	}
	return nil
}

const databaseRole = "database"

// databaseConfig is the configuration of the role.
type databaseConfig struct {
	Dir string
	// Address to listen on, in addition to loopback.
	Address netip.Addr
}

// runDatabase runs a PostgreSQL that accepts connections from other sites.
func runDatabase(ctx context.Context, link *child.Link) error {
	var cfg databaseConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	hba := cfg.Dir + ".hba"
	if err := os.WriteFile(hba, []byte("local all all scram-sha-256\nhost all all 198.18.0.0/15 scram-sha-256\n"), 0o644); err != nil {
		return err
	}
	db, err := postgres.Start(ctx, postgres.Config{Dir: cfg.Dir, Settings: map[string]string{
		"listen_addresses": "'" + cfg.Address.String() + "'",
		"hba_file":         "'" + hba + "'",
	}})
	if err != nil {
		return err
	}
	u, err := url.Parse(db.URL())
	if err == nil {
		u.Host = netip.AddrPortFrom(cfg.Address, netip.MustParseAddrPort(u.Host).Port()).String()
		err = link.Ready(u.String())
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, db.Stop())
}

func (s *stage) startDatabase(ctx context.Context) error {
	at := s.network.sites[databaseSite]
	p, err := child.Start(child.Spec{Role: databaseRole, Name: "database", LogFile: s.log("database"), Wrapper: at.wrapper(),
		Config: databaseConfig{Dir: filepath.Join(s.dir, "database"), Address: at.address}})
	if err != nil {
		return err
	}
	s.processes = append(s.processes, p)
	return p.WaitReady(ctx, &s.datastore)
}

// startMember starts a cluster and, in the same site, the store of its state.
func (s *stage) startMember(ctx context.Context, name string) (*member.Cluster, error) {
	at := s.network.sites[name]
	store, err := atoll.RunWrapped(at.wrapper(), s.log(name+"-store"), "kv", "serve",
		"--datastore", "sqlite://"+filepath.Join(s.dir, name+".db"), "--listen", "127.0.0.1:"+storePort)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.processes = append(s.processes, store)
	s.mu.Unlock()
	return member.Start(ctx, member.Config{
		Name: name, Dir: filepath.Join(s.dir, name), LogFile: s.log(name), Store: "http://127.0.0.1:" + storePort,
		Address: at.address.String(), Wrapper: at.wrapper(),
	})
}

// startServer starts a member's server of Atoll, also after a stop.
func (s *stage) startServer(ctx context.Context, name string) error {
	at := s.network.sites[name]
	server, err := atoll.Start(ctx, atoll.Config{
		Dir: filepath.Join(s.dir, "atoll-"+name), LogFile: s.log("atoll-" + name), Port: atollPort, Datastore: s.datastore, Wrapper: at.wrapper(),
		Flags: []string{"--token-file", s.token, "--bind-address", at.address.String(), "--member-port", memberPort, "--cluster", name},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers[name] = server
	return nil
}

func (s *stage) join(ctx context.Context, name string) error {
	config, err := s.rest("atoll-west")
	if err != nil {
		return err
	}
	kubeconfig, err := os.ReadFile(s.kubeconfig(name))
	if err != nil {
		return err
	}
	return join.Push(ctx, config, join.Options{Name: name, Kubeconfig: kubeconfig})
}

// close stops everything. With ATOLL_TEST_KEEP set, it keeps logs and data.
func (s *stage) close() {
	var all sync.WaitGroup
	for _, server := range s.servers {
		all.Go(server.Kill)
	}
	for _, cluster := range s.clusters {
		if cluster != nil {
			all.Go(cluster.Kill)
		}
	}
	all.Wait()
	for _, p := range s.processes {
		all.Go(func() { _ = p.Stop() })
	}
	all.Wait()
	if os.Getenv("ATOLL_TEST_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "data and logs are kept in", s.dir)
	} else if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

func (s *stage) log(name string) string { return filepath.Join(s.dir, "logs", name+".log") }

// kubeconfig returns the path of the kubeconfig of a member, or of its server of Atoll ("atoll-east").
func (s *stage) kubeconfig(name string) string {
	return filepath.Join(s.dir, name, "admin.kubeconfig")
}

func (s *stage) rest(name string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig(name))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

func (s *stage) client(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	config, err := s.rest(name)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// kubectl runs kubectl and returns its standard output. An error has the standard error.
func (s *stage) kubectl(ctx context.Context, name, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), kubectlVariable+"=yes", "KUBECONFIG="+s.kubeconfig(name),
		"HOME="+s.dir) // the discovery cache does not belong in the user's home
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: kubectl %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
