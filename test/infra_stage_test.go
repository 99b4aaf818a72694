package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/atoll"
)

// built is a provider in the mirror.
type built struct{ Source, Version, Packed, ZH, H1 string }

// demoMirror is the demo provider, and the evil one, as a mirror serves them, built by the first test that needs it.
var demoMirror struct {
	once       sync.Once
	err        error
	packed     string // the mirror's directory
	made, evil built
}

func buildDemoMirror(t *testing.T) {
	t.Helper()
	d := &demoMirror
	d.once.Do(func() {
		var dir string
		if dir, d.err = os.MkdirTemp("", "atoll-mirror-"); d.err != nil {
			return
		}
		d.packed = filepath.Join(dir, "packed")
		var out []byte
		out, d.err = exec.Command("go", "-C", filepath.Join("..", "infra", "testproviders"), "run", "./mirror", "-dir", dir, "-only", "demo,evil").Output()
		if d.err != nil {
			return
		}
		var all []built
		if d.err = json.Unmarshal(out, &all); d.err == nil {
			d.made, d.evil = all[0], all[1]
		}
	})
	if d.err != nil {
		t.Fatalf("build the demo provider: %v", d.err)
	}
}

// dropDemoMirror removes it when all tests are over.
func dropDemoMirror() {
	if demoMirror.packed != "" {
		os.RemoveAll(filepath.Dir(demoMirror.packed))
	}
}

// works is an `atoll server` of its own that takes providers from the mirror, with the demo provider, whose
// resources are files in a directory: its world.
type works struct {
	*fixture
	server *atoll.Server
	config atoll.Config
	world  string
}

// startWorks starts it, and returns when the demo provider is served and configured for the namespace default.
func startWorks(t *testing.T, flags ...string) *works {
	t.Helper()
	w := newWorks(t, flags...)
	w.start(t)
	w.install(t)
	return w
}

// sharedWorks is the server of the tests that neither end it nor need flags of their own.
var sharedWorks struct {
	once  sync.Once
	works *works
	dir   string
}

// sharedServer starts the shared server for the first test that needs it. Its namespace default has the demo provider;
// TestMistakesAreAnsweredWithARemedy works there, and every other test in a room.
func sharedServer(t *testing.T) *works {
	t.Helper()
	s := &sharedWorks
	s.once.Do(func() {
		dir, err := os.MkdirTemp("", "atoll-works-")
		if err != nil {
			t.Fatal(err)
		}
		s.dir = dir
		w := newWorksIn(t, dir)
		w.start(t)
		w.install(t)
		s.works = w
	})
	if s.works == nil {
		t.Fatal("the server that tests share did not start: see the first of them")
	}
	t.Cleanup(func() { s.works.showLog(t) })
	return s.works
}

// closeSharedServer ends it after the last test.
func closeSharedServer() {
	if sharedWorks.works != nil && sharedWorks.works.server != nil {
		sharedWorks.works.server.Kill()
	}
	if sharedWorks.dir != "" {
		os.RemoveAll(sharedWorks.dir)
	}
}

// newWorks has everything but a server that runs.
func newWorks(t *testing.T, flags ...string) *works {
	t.Helper()
	w := newWorksIn(t, t.TempDir(), flags...)
	t.Cleanup(func() {
		if w.server != nil {
			w.server.Kill()
		}
		w.showLog(t)
	})
	return w
}

func newWorksIn(t *testing.T, dir string, flags ...string) *works {
	t.Helper()
	buildDemoMirror(t)
	w := &works{fixture: &fixture{dir: dir}, world: filepath.Join(dir, "world"), config: atoll.Config{
		Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"),
		Flags: append([]string{"--provider-mirror", demoMirror.packed}, flags...)}}
	if err := os.Mkdir(w.world, 0o700); err != nil {
		t.Fatal(err)
	}
	return w
}

// showLog shows the end of the server's log if the test has failed.
func (w *works) showLog(t *testing.T) {
	if t.Failed() {
		log, _ := os.ReadFile(w.config.LogFile)
		t.Logf("the server's log ends with:\n%s", log[max(0, len(log)-8000):])
	}
}

// install has the demo provider installed and configured.
func (w *works) install(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the provider is written", func(ctx context.Context) error {
		// A new server is ready a moment before it has the types of infrastructure.
		_, err := w.tryKubectl(ctx, w.providerObjects("default"), "apply", "-f", "-")
		return err
	})
	eventually(t, time.Minute, "the provider is served", func(ctx context.Context) error {
		_, err := w.tryKubectl(ctx, "", "wait", "--for=condition=Served", "--timeout=20s", "provider/demo")
		return err
	})
}

// start starts the server, again if it was killed.
func (w *works) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var err error
	if w.server, err = atoll.Start(ctx, w.config); err != nil {
		t.Fatal(err)
	}
}

// providerObjects are the Provider, and how it acts in a namespace.
func (w *works) providerObjects(namespace string) string {
	d := &demoMirror
	return fmt.Sprintf(`apiVersion: infra.atoll.dev/v1alpha1
kind: Provider
metadata: {name: demo}
spec:
  source: %s
  version: %s
  digests: [%q]
  origin: {filesystemMirror: {path: %q}}
---
apiVersion: infra.atoll.dev/v1alpha1
kind: ProviderConfig
metadata: {name: demo, namespace: %s}
spec:
  provider: demo
  configuration: {directory: %q}
`, d.made.Source, d.made.Version, d.made.ZH, d.packed, namespace, w.world)
}

// tryKubectl runs kubectl as the administrator, or with other flags of whom to be.
func (w *works) tryKubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return w.run(ctx, "kubectl", w.server.Kubeconfig, stdin, args...)
}

func (w *works) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.tryKubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *works) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := w.tryKubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// answer is what a command printed, and its exit code.
type answer struct {
	out, errs string
	code      int
}

// atoll runs a command of the atoll binary as the administrator.
func (w *works) atoll(t *testing.T, args ...string) answer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=atoll", "KUBECONFIG="+w.server.Kubeconfig, "HOME="+w.dir, "GOGC=400")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("atoll %s: %v", strings.Join(args, " "), err)
	}
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// does is atoll for a command that has to end well.
func (w *works) does(t *testing.T, args ...string) string {
	t.Helper()
	a := w.atoll(t, args...)
	if a.code != 0 {
		t.Fatalf("atoll %s: exit code %d\n%s%s", strings.Join(args, " "), a.code, a.out, a.errs)
	}
	return a.out
}
