package kubelets_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/isolated"
	"github.com/atoll-dev/atoll/test/programs"
)

// island is the cluster in mode Pull.
const island = "island"

// members are all clusters.
var members = []string{"east", "west", island}

// servers is how many servers of Atoll there are.
const servers = 3

// atollAddress is the address of all of them. Pods and clusters have a route to it.
const atollAddress = "198.18.0.1"

// stage is the fleet.
type stage struct {
	once sync.Once
	err  error
	dir  string
	*system.System
	mu      sync.Mutex
	members map[string]*member.Cluster
	syncer  *child.Process // of the island
}

// shared is started by the first test.
var shared = &stage{members: map[string]*member.Cluster{}}

func (s *stage) start(progress func(part, step string)) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := isolated.Prepare(); err != nil {
		return err
	}
	if err := isolated.IP("addr", "add", atollAddress+"/32", "dev", "lo"); err != nil {
		return err
	}
	// Not t.TempDir: the account that runs PostgreSQL must be able to enter the directory.
	if s.dir, err = os.MkdirTemp("", "atoll-kubelets-"); err != nil {
		return err
	}
	images, err := node.BuildImages(ctx, s.dir)
	if err != nil {
		return err
	}
	s.System, err = system.Open(ctx, system.Config{
		Dir: s.dir, Servers: servers, Kubelets: true, Images: []string{images},
		Flags: []string{"--bind-address", atollAddress}, Progress: progress,
	})
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error { return s.StartAtoll(ctx) })
	for _, name := range members {
		group.Go(func() error {
			cluster, err := s.StartMember(ctx, name)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.members[name] = cluster
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, name := range members {
		if name == island {
			err = s.pull(ctx)
		} else {
			err = s.Join(ctx, s.members[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pull joins the island: its syncer runs in the island's network, which then lets no connection in, except to its pods.
func (s *stage) pull(ctx context.Context) error {
	view, access := filepath.Join(s.dir, "view.kubeconfig"), filepath.Join(s.dir, "syncer.kubeconfig")
	config, err := s.rest("atoll")
	if err != nil {
		return err
	}
	if _, err := s.atoll(ctx, "join", island, "--mode", "pull", "--server", config.Host, "--view-kubeconfig", view); err != nil {
		return err
	}
	roles, err := s.atoll(ctx, "join", island, "--mode", "pull", "--roles-only")
	if err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, island, roles, "apply", "-f", "-"); err != nil {
		return err
	}
	token, err := s.kubectl(ctx, island, "", "create", "token", "atoll-syncer", "-n", "atoll-system", "--duration=2h")
	if err != nil {
		return err
	}
	account, err := clientcmd.LoadFromFile(s.kubeconfig(island))
	if err != nil {
		return err
	}
	for _, user := range account.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: token}
	}
	if err := clientcmd.WriteToFile(*account, access); err != nil {
		return err
	}
	network := s.Network(island)
	s.syncer, err = atoll.RunWrapped(network.Wrapper(), filepath.Join(s.dir, "logs", "syncer.log"), "syncer", "--kubeconfig", access, "--view-kubeconfig", view)
	if err != nil {
		return err
	}
	closed := slices.Concat(network.Wrapper(), []string{"iptables", "-A", "INPUT", "-i", "line", "-p", "tcp", "--syn", "-j", "DROP"})
	if out, err := exec.CommandContext(ctx, closed[0], closed[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("close the network of %s: %w: %s", island, err, out)
	}
	_, err = s.kubectl(ctx, "atoll", "", "wait", "cluster/"+island, "--for=condition=Ready", "--timeout=90s")
	return err
}

// close stops everything. With ATOLL_TEST_KEEP set, it keeps logs and data; after a failure it prints the ends of logs.
func (s *stage) close(failed bool) {
	if s.syncer != nil {
		_ = s.syncer.Stop()
	}
	if s.System != nil {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "stop:", err)
		}
	}
	if failed {
		logs, _ := filepath.Glob(filepath.Join(s.dir, "logs", "*.log"))
		for _, file := range logs {
			raw, _ := os.ReadFile(file)
			fmt.Fprintf(os.Stderr, "--- %s\n%s\n", filepath.Base(file), raw[max(0, len(raw)-2000):])
		}
	}
	if os.Getenv("ATOLL_TEST_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "data and logs are kept in", s.dir)
	} else if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// kubeconfig returns the path of the kubeconfig of a member, of a server of Atoll ("atoll", "atoll-2", …), or of a workspace on one ("atoll/team").
func (s *stage) kubeconfig(name string) string {
	if server, workspace, is := strings.Cut(name, "/"); is {
		return s.ofWorkspace(server, workspace)
	}
	if i := slices.Index(s.Servers(), name); i >= 0 {
		return s.KubeconfigOf(i)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[name].Kubeconfig
}

// ofWorkspace writes a kubeconfig for a workspace on a server. If that fails, its path leads to no file, and clients say so.
func (s *stage) ofWorkspace(server, workspace string) string {
	file := filepath.Join(s.dir, server+"-"+workspace+".kubeconfig")
	config, err := clientcmd.LoadFromFile(s.kubeconfig(server))
	if err != nil {
		return file
	}
	for _, cluster := range config.Clusters {
		cluster.Server += "/clusters/" + workspace
	}
	_ = clientcmd.WriteToFile(*config, file)
	return file
}

func (s *stage) rest(name string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig(name))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// client returns a client of a server, or of a member. That of the island does not work from here.
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

// kubectl runs kubectl with a server or a member, and returns its output. The island accepts no connection, so it runs in its network.
func (s *stage) kubectl(ctx context.Context, name, stdin string, args ...string) (string, error) {
	if name == island {
		cmd := programs.Command(ctx, s.dir, "kubectl", s.kubeconfig(name), args...)
		line := append(s.Network(name).Wrapper(), cmd.Args...)
		inside := exec.CommandContext(ctx, line[0], line[1:]...)
		inside.Env, inside.Stdin = cmd.Env, strings.NewReader(stdin)
		var out, errs bytes.Buffer
		inside.Stdout, inside.Stderr = &out, &errs
		if err := inside.Run(); err != nil {
			return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
		}
		return strings.TrimSpace(out.String()), nil
	}
	return programs.Run(ctx, s.dir, "kubectl", s.kubeconfig(name), stdin, args...)
}

func (s *stage) atoll(ctx context.Context, args ...string) (string, error) {
	return programs.Run(ctx, s.dir, "atoll", s.Kubeconfig(), "", args...)
}

// must runs kubectl on the first server.
func (s *stage) must(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	return s.mustAt(t, "atoll", stdin, args...)
}

// mustAt runs kubectl with a server, a member or a workspace.
func (s *stage) mustAt(t *testing.T, at, stdin string, args ...string) string {
	t.Helper()
	out, err := s.kubectl(t.Context(), at, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// namespace creates a namespace, and deletes it after the test.
func (s *stage) namespace(t *testing.T, name string) {
	t.Helper()
	s.must(t, "", "create", "namespace", name)
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := s.kubectl(ctx, "atoll", "", "delete", "namespace", name, "--timeout=120s"); err != nil {
			why, _ := s.kubectl(ctx, "atoll", "", "get", "namespace", name, "-o", "jsonpath={.status.conditions}")
			bindings, _ := s.kubectl(ctx, "atoll", "", "get", "resourcebindings", "-n", name, "-o", "jsonpath={range .items[*]}{.metadata.name}: {.metadata.deletionTimestamp} {.spec.clusters} {.status.clusters}{\"\\n\"}{end}")
			t.Errorf("%v\nits conditions: %s\nits bindings:\n%s", err, why, bindings)
		}
	})
}

// running starts kubectl and returns its standard input, and its output as it comes.
func (s *stage) running(t *testing.T, server string, args ...string) (stdin interface{ Write([]byte) (int, error) }, out *output) {
	t.Helper()
	cmd := programs.Command(t.Context(), s.dir, "kubectl", s.kubeconfig(server), args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out = &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return in, out
}

// output is what a program has printed.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// unreachable returns an error if this process can connect to the API server or the kubelet of a member.
func (s *stage) unreachable(name string) error {
	config, err := s.rest(name)
	if err != nil {
		return err
	}
	at, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	for _, address := range []string{at.Host, net.JoinHostPort(at.Hostname(), "10250")} {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%s accepts connections", address)
		}
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			return fmt.Errorf("%s: %w, want no answer at all", address, err)
		}
	}
	return nil
}
