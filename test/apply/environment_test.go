package apply_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/atoll"

	"github.com/atoll-dev/atoll/test/programs"
	"github.com/atoll-dev/atoll/test/providers"
)

// environment is an `atoll server` that installs providers from the mirror. The demo provider is
// configured; its resources are files in a directory, the world.
type environment struct {
	dir    string // home directory of the programs that use the server
	server *atoll.Server
	config atoll.Config
	world  string
	// granted is the directory that Providers grant to their providers; all worlds are in it.
	granted string
	mirror  *providers.Mirror
}

// startEnvironment starts a server, and returns when the demo provider is served, and configured in the
// namespace default.
func startEnvironment(t *testing.T, flags ...string) *environment {
	t.Helper()
	w := newEnvironment(t, flags...)
	w.start(t)
	w.install(t)
	return w
}

// sharedEnvironment is the server of the tests that neither stop it nor need flags of their own.
var sharedEnvironment struct {
	once        sync.Once
	environment *environment
	dir         string
}

// sharedServer returns the shared server. The first test that needs it starts it. TestMistakesGetRemedies uses its
// namespace default, which has the demo provider; every other test creates a namespace of its own.
func sharedServer(t *testing.T) *environment {
	t.Helper()
	s := &sharedEnvironment
	s.once.Do(func() {
		dir, err := os.MkdirTemp("", "atoll-apply-")
		if err != nil {
			t.Fatal(err)
		}
		s.dir = dir
		w := newEnvironmentIn(t, dir)
		w.start(t)
		w.install(t)
		s.environment = w
	})
	if s.environment == nil {
		t.Fatal("the shared server did not start: see the first test that uses it")
	}
	t.Cleanup(func() { s.environment.showLog(t) })
	return s.environment
}

// closeSharedServer stops the shared server after the last test.
func closeSharedServer() {
	if sharedEnvironment.environment != nil && sharedEnvironment.environment.server != nil {
		sharedEnvironment.environment.server.Kill()
	}
	if sharedEnvironment.dir != "" {
		os.RemoveAll(sharedEnvironment.dir)
	}
}

// newEnvironment prepares a server without starting it.
func newEnvironment(t *testing.T, flags ...string) *environment {
	t.Helper()
	w := newEnvironmentIn(t, t.TempDir(), flags...)
	t.Cleanup(func() {
		if w.server != nil {
			w.server.Kill()
		}
		w.showLog(t)
	})
	return w
}

func newEnvironmentIn(t *testing.T, dir string, flags ...string) *environment {
	t.Helper()
	mirror := providers.Build(t)
	world := providers.World(t, dir)
	return &environment{dir: dir, mirror: mirror, world: world, granted: world, config: atoll.Config{
		Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"),
		Flags: append([]string{"--provider-mirror", mirror.Packed}, flags...)}}
}

// showLog prints the end of the server's log if the test has failed.
func (w *environment) showLog(t *testing.T) {
	if t.Failed() {
		log, _ := os.ReadFile(w.config.LogFile)
		t.Logf("the server's log ends with:\n%s", log[max(0, len(log)-8000):])
	}
}

// install installs and configures the demo provider.
func (w *environment) install(t *testing.T) {
	t.Helper()
	programs.Eventually(t, time.Minute, "the provider is created", func(ctx context.Context) error {
		// A new server is ready shortly before it serves the kinds of infrastructure.
		_, err := w.tryKubectl(ctx, w.providerObjects("default"), "apply", "-f", "-")
		return err
	})
	programs.Eventually(t, time.Minute, "the provider is served", func(ctx context.Context) error {
		_, err := w.tryKubectl(ctx, "", "wait", "--for=condition=Served", "--timeout=20s", "provider/demo")
		return err
	})
}

// start starts the server, also after a stop.
func (w *environment) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var err error
	if w.server, err = atoll.Start(ctx, w.config); err != nil {
		t.Fatal(err)
	}
}

// providerObjects returns the manifests of the demo provider and of its configuration in a namespace.
func (w *environment) providerObjects(namespace string) string {
	return w.mirror.Manifests(namespace, w.granted, w.world)
}

// tryKubectl runs kubectl as the administrator, unless flags impersonate another user.
func (w *environment) tryKubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return programs.Run(ctx, w.dir, "kubectl", w.server.Kubeconfig, stdin, args...)
}

func (w *environment) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.tryKubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *environment) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := w.tryKubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// atoll runs a command of the atoll binary as the administrator.
func (w *environment) atoll(t *testing.T, args ...string) answer {
	t.Helper()
	a, err := programs.Ask(t.Context(), w.dir, "atoll", w.server.Kubeconfig, args...)
	if err != nil {
		t.Fatal(err)
	}
	return answer(a)
}

// answer is the output of a command and its exit code.
type answer programs.Answer

// mustAtoll runs a command of the atoll binary that must succeed, and returns its standard output.
func (w *environment) mustAtoll(t *testing.T, args ...string) string {
	t.Helper()
	a := w.atoll(t, args...)
	if a.Code != 0 {
		t.Fatalf("atoll %s: exit code %d\n%s%s", strings.Join(args, " "), a.Code, a.Out, a.Errs)
	}
	return a.Out
}

// changeObject replaces a text in the only object of a type, as another client of the provider would.
func (w *environment) changeObject(t *testing.T, typ, old, new string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(w.world, "objects", typ, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the objects of %s are %v: %v", typ, files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s lacks %s:\n%s", files[0], old, text)
	}
	if err := os.WriteFile(files[0], []byte(strings.ReplaceAll(string(text), old, new)), 0o600); err != nil {
		t.Fatal(err)
	}
}
