// Package moving tests moves, failovers and drains on real clusters. What the tests believe is what the members'
// own watches show: a witness counts the ready Pods of all members at each event (witness_test.go).
//
// The tests share one system: two servers on a PostgreSQL, and three members that Atoll reaches over links that can
// be cut. Each test has a namespace of its own, and leaves all members reachable, schedulable and Ready. Those that
// harm a member run one after the other, before the parallel ones.
package moving

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
)

var (
	moves     = flag.Int("moves", 3, "number of moves in TestMoves, and in TestMovesOfKilledLeaders")
	workloads = flag.Int("workloads", 20, "number of objects in TestDrain")
	thorough  = flag.Bool("thorough", false, "also cut off clusters in the middle of moves, and kill the leading server during failovers")
)

// settle is how long the fleet may take on a busy machine.
const settle = 3 * time.Minute

// The members.
const (
	east  = "east"
	west  = "west"
	north = "north"
)

var members = []string{east, west, north}

func TestMain(m *testing.M) {
	programs.Main(system.Roles())
	status := m.Run()
	shared.close()
	os.Exit(status)
}

// stage is the system that the tests share.
type stage struct {
	once sync.Once
	err  error
	dir  string

	*system.System
	witness *witness
	links   map[string]*programs.Link
	members map[string]*kubernetes.Clientset

	mu     sync.Mutex
	server int // the index of the server that tests talk to
}

var shared = &stage{links: map[string]*programs.Link{}, members: map[string]*kubernetes.Clientset{}}

// whole returns the system, started by the first test.
func whole(t *testing.T) *stage {
	t.Helper()
	shared.once.Do(func() {
		began := time.Now()
		shared.err = shared.start()
		t.Logf("the system started in %s", time.Since(began).Round(100*time.Millisecond))
	})
	if shared.err != nil {
		t.Fatalf("the system did not start: %v", shared.err)
	}
	return shared
}

func (s *stage) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// Not t.TempDir: the account that runs PostgreSQL must be able to enter the directory.
	if s.dir, err = os.MkdirTemp("", "atoll-moving-"); err != nil {
		return err
	}
	if s.System, err = system.Open(ctx, system.Config{Dir: s.dir, Servers: 2, Flags: []string{"-v", "1"}}); err != nil {
		return err
	}
	var group errgroup.Group
	var mu sync.Mutex
	clusters := map[string]*member.Cluster{}
	for _, name := range members {
		group.Go(func() error {
			cluster, err := s.StartMember(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			clusters[name] = cluster
			return err
		})
	}
	group.Go(func() error { return s.StartAtoll(ctx) })
	if err := group.Wait(); err != nil {
		return err
	}
	for _, name := range members {
		if err := s.join(ctx, clusters[name]); err != nil {
			return err
		}
	}
	s.witness, err = newWitness(s.members)
	return err
}

// join registers a member under the address of a link to it.
func (s *stage) join(ctx context.Context, cluster *member.Cluster) error {
	direct, err := cluster.REST()
	if err != nil {
		return err
	}
	if s.members[cluster.Name], err = kubernetes.NewForConfig(direct); err != nil {
		return err
	}
	at, err := url.Parse(direct.Host)
	if err != nil {
		return err
	}
	if s.links[cluster.Name], err = programs.NewLink(at.Host); err != nil {
		return err
	}
	kubeconfig, err := s.kubeconfigOver(cluster.Name, func(*clientcmdapi.AuthInfo) {})
	if err != nil {
		return err
	}
	config, err := s.REST()
	if err != nil {
		return err
	}
	return join.Push(ctx, config, join.Options{Name: cluster.Name, Kubeconfig: kubeconfig})
}

// kubeconfigOver returns the kubeconfig with which Atoll reaches a member over its link, with changed credentials.
func (s *stage) kubeconfigOver(name string, change func(*clientcmdapi.AuthInfo)) ([]byte, error) {
	config, err := clientcmd.LoadFromFile(filepath.Join(s.dir, "members", name, "admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + s.links[name].Address()
	}
	for _, u := range config.AuthInfos {
		change(u)
	}
	return clientcmd.Write(*config)
}

// close stops everything. With ATOLL_TEST_KEEP set, it keeps logs and data.
func (s *stage) close() {
	if s.witness != nil {
		s.witness.close()
	}
	for _, l := range s.links {
		l.Close()
	}
	if s.System != nil {
		_ = s.Close()
	}
	if os.Getenv("ATOLL_TEST_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "data and logs are kept in", s.dir)
	} else if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// running returns the administrator's kubeconfig for a server that no test has killed.
func (s *stage) running() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.KubeconfigOf(s.server)
}

// use has tests talk to a server from now on.
func (s *stage) use(server int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
}

// config returns a client configuration for Atoll.
func (s *stage) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.running())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.Timeout = 10 * time.Second // a server that was killed does not answer
	return config
}

// client returns a client for Atoll.
func (s *stage) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// dynamic returns a client for Atoll's own kinds.
func (s *stage) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// atoll runs a command of the atoll binary and returns its output. If the server that it talks to is killed meanwhile, it
// runs again with the other one.
func (s *stage) atoll(t *testing.T, args ...string) string {
	t.Helper()
	for {
		server := s.running()
		out, err := programs.Run(t.Context(), s.dir, "atoll", server, "", args...)
		if err == nil {
			return out
		}
		if server == s.running() {
			t.Fatal(err)
		}
		t.Logf("again with the other server: %v", err)
	}
}

// apply applies a manifest to Atoll.
func (s *stage) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := programs.Run(t.Context(), s.dir, "kubectl", s.running(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until check returns nil.
func eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	programs.Eventually(t, settle, what, check)
}

// patchOf returns a patch as JSON.
func patchOf(t *testing.T, patch map[string]any) []byte {
	t.Helper()
	data, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
