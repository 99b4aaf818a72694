package server_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// writers write objects through clients until they are stopped, each at the path that serves the workspace then.
type writers struct {
	mu           sync.Mutex
	acknowledged []string
	stop         context.CancelFunc
	running      sync.WaitGroup
}

// startWriters starts clients that write into a workspace, which is at one of two paths.
func startWriters(t *testing.T, at ...*rest.Config) *writers {
	ctx, stop := context.WithCancel(t.Context())
	w := &writers{stop: stop}
	for n := range 4 {
		w.running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("w%d-%d", n, i)
				in := at[(n+i)%len(at)]
				_, err := clientOf(t, in).CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err == nil {
					w.mu.Lock()
					w.acknowledged = append(w.acknowledged, name)
					w.mu.Unlock()
				}
			}
		})
	}
	t.Cleanup(w.end)
	return w
}

func (w *writers) end() {
	w.stop()
	w.running.Wait()
}

func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acknowledged)
}

// await waits for n more acknowledged writes.
func (w *writers) await(t *testing.T, n int) {
	t.Helper()
	n += w.count()
	within(t, time.Minute, "writes", func(context.Context) error {
		if is := w.count(); is < n {
			return fmt.Errorf("%d of %d writes", is, n)
		}
		return nil
	})
}

// verify checks that a workspace has every acknowledged object.
func (w *writers) verify(t *testing.T, in *rest.Config) {
	t.Helper()
	list, err := clientOf(t, in).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, o := range list.Items {
		has[o.Name] = true
	}
	lost := 0
	for _, name := range w.acknowledged {
		if !has[name] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged objects are lost", lost, len(w.acknowledged))
	}
}

// TestWorkspaceMoveBusy: no acknowledged write is lost by moves.
func TestWorkspaceMoveBusy(t *testing.T) {
	s := theServer(t)
	root, a, b := s.config(t), s.createWorkspace(t, "busy-a"), s.workspace(t, "busy-b")
	t.Cleanup(func() {
		_ = s.dynamic(t).Resource(tenancy.WorkspaceResource).Delete(context.Background(), "busy-b", metav1.DeleteOptions{})
	})
	w := startWriters(t, a, b)
	for i := range 4 {
		w.await(t, 50)
		from, to := "busy-a", "busy-b"
		if i%2 == 1 {
			from, to = to, from
		}
		if i > 0 {
			s.gone(t, to)
		}
		mustMove(t, root, from, to)
	}
	w.await(t, 50)
	w.end()
	w.verify(t, a)
}

// TestWorkspaceMoveServers moves a workspace between paths while clients of two servers write into it: no acknowledged write is lost, and
// both servers serve it at its new path.
func TestWorkspaceMoveServers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	first := t.TempDir()
	one := newServer(t, server.Config{DataDir: first, Datastore: db.URL()})
	two := newServer(t, server.Config{DataDir: t.TempDir(), Datastore: db.URL(), TokenFile: filepath.Join(first, "token")})
	for _, s := range []atoll{one, two} {
		t.Cleanup(func() {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		})
	}
	one.createWorkspace(t, "parent")
	one.createWorkspace(t, "a")
	one.createNested(t, "a", "inner")
	inner := watchConfigMaps(t, two.workspace(t, "a:inner"))
	w := startWriters(t, one.workspace(t, "a"), two.workspace(t, "a"), one.workspace(t, "parent:b"), two.workspace(t, "parent:b"))
	w.await(t, 50)
	mustMove(t, one.workspace(t, "parent"), "a", "b")
	for range inner.ResultChan() { // it ends, on the server that did not move it
	}
	one.gone(t, "a")
	w.await(t, 50)
	inB := watchConfigMaps(t, two.workspace(t, "parent:b"))
	mustMove(t, one.config(t), "parent:b", "a")
	for range inB.ResultChan() {
	}
	w.await(t, 50)
	w.end()
	for _, s := range []atoll{one, two} {
		w.verify(t, s.workspace(t, "a"))
		eventually(t, "the old path is not found", func(ctx context.Context) error {
			_, err := clientOf(t, s.workspace(t, "parent:b")).CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("the old path answers with %w", err)
			}
			return nil
		})
	}
}

// startIntercepted starts a server that calls a function instead of each rename of a keyspace.
func startIntercepted(t *testing.T, dir string, intercept func(do func() error) error) atoll {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := server.New(ctx, server.Config{DataDir: dir})
	if err == nil {
		err = s.InterceptRenames(intercept)
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	a := atoll{Server: s, cancel: cancel, done: make(chan error, 1)}
	go func() { a.done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case <-time.After(startTimeout):
		t.Fatalf("the server is not ready after %s: %s", startTimeout, a.readiness())
	}
	return a
}

// TestWorkspaceMoveStopped: a server that stops in the middle of a move goes on after its start, before the rename and after it. If the
// destination is deleted before the rename, the source is served again, with everything in it.
func TestWorkspaceMoveStopped(t *testing.T) {
	dir := t.TempDir()
	var attempts atomic.Int64
	refuse := func(func() error) error { attempts.Add(1); return errors.New("the test stops here") }
	s := startIntercepted(t, dir, refuse)
	a := s.createWorkspace(t, "a")
	createConfigMap(t, clientOf(t, a), "default", "kept")
	createConfigMap(t, clientOf(t, s.createNested(t, "a", "inner")), "default", "kept")
	workspaceReadyFor(t, s.config(t), "a", "b")
	begin := func(name string) {
		t.Helper()
		attempts.Store(0)
		if err := moveWorkspace(t, s.config(t), "a", name); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the move is before the rename", func(context.Context) error {
			if attempts.Load() == 0 {
				return errors.New("it has not begun")
			}
			return nil
		})
	}
	begin("b")
	wantNotFound(t, s.workspace(t, "a"))
	s.mustKubectl(t, "", "delete", "workspace", "b")
	eventually(t, "the source is served again", func(ctx context.Context) error {
		_, err := clientOf(t, s.workspace(t, "a")).CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
		return err
	})
	has := func(path string) {
		t.Helper()
		for _, path := range []string{path, path + ":inner"} {
			if _, err := clientOf(t, s.workspace(t, path)).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	has("a")
	restart := func(intercept func(func() error) error) {
		t.Helper()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		s = startIntercepted(t, dir, intercept)
	}

	begin("b")
	// A deletion of the source waits: its objects belong to the destination.
	if err := clientsOf(t, s.config(t)).Resource(tenancy.WorkspaceResource).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, s.config(t), "a", tenancy.WorkspaceTerminating, "RemovalFailed", "")
	attempts.Store(0)
	after := func(do func() error) error { // the rename is made, and the server does not know
		err := do()
		attempts.Add(1)
		return errors.Join(err, errors.New("the test stops here"))
	}
	restart(after)
	eventually(t, "the rename is made", func(context.Context) error {
		if attempts.Load() == 0 {
			return errors.New("it has not begun")
		}
		return nil
	})
	restart(func(do func() error) error { return do() })
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	workspaceIs(t, s.config(t), "b", tenancy.WorkspaceReady, "Served", "")
	s.gone(t, "a")
	has("b")
	s.createWorkspace(t, "a")
	if _, err := clientOf(t, s.workspace(t, "a")).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a new workspace at the old path: %v", err)
	}
	// A destination that is deleted later is deleted with its objects.
	s.mustKubectl(t, "", "delete", "workspace", "b")
	s.gone(t, "b")
}
