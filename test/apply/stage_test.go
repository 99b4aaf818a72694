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

// works is an `atoll server` that takes providers from the mirror, with the demo provider, whose
// resources are files in a directory: its world.
type works struct {
	dir    string // home of the programs that are run against it
	server *atoll.Server
	config atoll.Config
	world  string
	mirror *providers.Mirror
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
	mirror := providers.Build(t)
	w := &works{dir: dir, mirror: mirror, world: filepath.Join(dir, "world"), config: atoll.Config{
		Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"),
		Flags: append([]string{"--provider-mirror", mirror.Packed}, flags...)}}
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
	programs.Eventually(t, time.Minute, "the provider is written", func(ctx context.Context) error {
		// A new server is ready a moment before it has the types of infrastructure.
		_, err := w.tryKubectl(ctx, w.providerObjects("default"), "apply", "-f", "-")
		return err
	})
	programs.Eventually(t, time.Minute, "the provider is served", func(ctx context.Context) error {
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

// providerObjects are the demo provider, and how it acts in a namespace.
func (w *works) providerObjects(namespace string) string {
	return w.mirror.Manifests(namespace, w.world)
}

// tryKubectl runs kubectl as the administrator, or with other flags of whom to be.
func (w *works) tryKubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return programs.Run(ctx, w.dir, "kubectl", w.server.Kubeconfig, stdin, args...)
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

// atoll runs a command of the atoll binary as the administrator.
func (w *works) atoll(t *testing.T, args ...string) answer {
	t.Helper()
	a, err := programs.Ask(t.Context(), w.dir, "atoll", w.server.Kubeconfig, args...)
	if err != nil {
		t.Fatal(err)
	}
	return answer(a)
}

// answer is what a command printed, and its exit code.
type answer programs.Answer

// does is atoll for a command that has to end well.
func (w *works) does(t *testing.T, args ...string) string {
	t.Helper()
	a := w.atoll(t, args...)
	if a.Code != 0 {
		t.Fatalf("atoll %s: exit code %d\n%s%s", strings.Join(args, " "), a.Code, a.Out, a.Errs)
	}
	return a.Out
}
