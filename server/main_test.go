package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/cmd"

	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/server"
)

// kubectlRole makes the test binary run as kubectl: the real one, in its own process,
// without building another binary.
const kubectlRole = "ATOLL_TEST_KUBECTL"

// launcherArgument makes the test binary a launcher of providers.
const launcherArgument = "provider-launcher"

func TestMain(m *testing.M) {
	if os.Getenv(kubectlRole) != "" {
		if err := cmd.NewDefaultKubectlCommand().Execute(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == launcherArgument {
		if err := plugin.Launch(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := server.BoundMetricLabels(); err != nil { // as the command does
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the shared server:", err)
		code = 1
	}
	os.Exit(code)
}

// shared is one server for all tests that do not need their own; each works in its own
// namespace.
var shared sharedServer

type sharedServer struct {
	once sync.Once
	atoll
	err error
	dir string
}

// atoll is a running server.
type atoll struct {
	*server.Server
	cancel context.CancelFunc
	done   chan error
	// path is that of a workspace below the server's own; "" is the server's own.
	path string
}

// URL is that of the API.
func (a atoll) URL() string { return a.Server.URL() + a.path }

// startTimeout bounds the wait for a server that never becomes ready. One that does takes 20 seconds on a machine with eight times as much to do as it can.
const startTimeout = 3 * time.Minute

// start runs a server and waits until it is ready.
func start(cfg server.Config) (atoll, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := server.New(ctx, cfg)
	if err != nil {
		cancel()
		return atoll{}, err
	}
	a := atoll{Server: s, cancel: cancel, done: make(chan error, 1)}
	go func() { a.done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		return a, nil
	case err := <-a.done:
		return atoll{}, errors.Join(fmt.Errorf("server ended before it was ready: %w", err), s.Close())
	case <-time.After(startTimeout):
		return atoll{}, errors.Join(fmt.Errorf("server was not ready after %s: %s", startTimeout, a.readiness()), a.stop())
	}
}

// readiness says what a server lacks to be ready.
func (a atoll) readiness() string {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // no secrets are sent
	response, err := client.Get(a.Server.URL() + "/readyz?verbose")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return err.Error()
	}
	var missing []string
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "[+]") {
			missing = append(missing, strings.TrimSpace(line))
		}
	}
	return strings.Join(missing, "; ")
}

func (a atoll) stop() error {
	a.cancel()
	return errors.Join(<-a.done, a.Close())
}

func (s *sharedServer) stop() error {
	if s.Server == nil {
		return nil
	}
	return errors.Join(s.atoll.stop(), os.RemoveAll(s.dir))
}

// theServer returns the shared server, and starts it for the first test.
func theServer(t *testing.T) atoll {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "atoll-server-test-"); shared.err == nil {
			shared.atoll, shared.err = start(server.Config{DataDir: shared.dir})
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.atoll
}

// inEachAPI runs a test with the shared server's own API, and with a workspace below it: they must not differ.
func inEachAPI(t *testing.T, test func(*testing.T, atoll)) {
	t.Run("root", func(t *testing.T) { test(t, theServer(t)) })
	t.Run("workspace", func(t *testing.T) {
		s := theServer(t)
		name := "suite-" + strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(t.Name(), "Test"), "/workspace"))
		s.createWorkspace(t, name)
		s.path = "/clusters/" + name
		test(t, s)
	})
}

// newServer starts a server for one test.
func newServer(t *testing.T, cfg server.Config) atoll {
	t.Helper()
	a, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a atoll) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.Host += a.path
	return config
}

func (a atoll) client(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(a.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (a atoll) dynamic(t *testing.T) *dynamic.DynamicClient {
	t.Helper()
	client, err := dynamic.NewForConfig(a.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// namespace creates a namespace for the test and deletes it afterwards.
func (a atoll) namespace(t *testing.T) string {
	t.Helper()
	client := a.client(t).CoreV1().Namespaces()
	ns, err := client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
	})
	return ns.Name
}

// kubectl runs the real kubectl and returns its output on both streams.
func (a atoll) kubectl(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	flags := []string{"--kubeconfig", a.Kubeconfig()}
	if a.path != "" { // otherwise the test may set another kubeconfig
		flags = append(flags, "--server", a.URL())
	}
	command := exec.CommandContext(t.Context(), os.Args[0], append(flags, args...)...)
	command.Env = append(os.Environ(), kubectlRole+"=1", "HOME="+t.TempDir())
	command.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	return out.String(), err
}

// mustKubectl fails the test if kubectl fails.
func (a atoll) mustKubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := a.kubectl(t, stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// eventually waits until check returns nil, and fails the test with its last
// error if that takes too long.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	within(t, 30*time.Second, what, check)
}

func within(t *testing.T, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err // not merely that the deadline has passed
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, last)
		case <-ticker.C:
		}
	}
}
