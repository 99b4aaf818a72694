package tenancy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// controlled is a controller whose workspaces are only counted.
type controlled struct {
	api   *fakeapi.Server
	clock *testingclock.FakeClock

	mu      sync.Mutex
	exist   map[string]bool // by UID
	failing error
}

func startController(t *testing.T, finish func(context.Context, string, Observed) error, place ...func(context.Context, string, Observed) error) *controlled {
	t.Helper()
	s := &controlled{api: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...), exist: map[string]bool{}, clock: testingclock.NewFakeClock(time.Now())}
	client, err := dynamic.NewForConfig(s.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	var now clock.WithTicker = clock.RealClock{} // retries take milliseconds
	if finish != nil {
		now = s.clock
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	directory := NewDirectory(client)
	go func() { _ = directory.Run(ctx) }() // it ends with ctx, and returns nil
	set := func(exists bool) func(context.Context, string, *v1alpha1.Workspace) error {
		return func(_ context.Context, _ string, w *v1alpha1.Workspace) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.failing == nil {
				s.exist[string(w.UID)] = exists
			}
			return s.failing
		}
	}
	cfg := ControllerConfig{Client: client, Directory: directory, Clock: now, Log: slog.New(slog.DiscardHandler), Create: set(true), Remove: set(false), Finish: finish}
	if len(place) > 0 {
		cfg.Place = place[0]
	}
	go func() {
		done <- RunController(ctx, cfg)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *controlled) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = err
}

func (s *controlled) create(name string) (uid string) {
	s.api.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name}}})
	return string(s.api.Get(v1alpha1.WorkspaceResource, "", name).GetUID())
}

// becomes waits until the workspace has the phase, and a condition with the reason.
func (s *controlled) becomes(t *testing.T, name string, phase v1alpha1.WorkspacePhase, reason string) {
	t.Helper()
	fakeapi.Eventually(t, name+" is "+string(phase), func() error {
		is := &v1alpha1.Workspace{}
		s.api.Read(v1alpha1.WorkspaceResource, "", name, is)
		if is.Status.Phase != phase || len(is.Status.Conditions) != 1 || is.Status.Conditions[0].Reason != reason || is.Status.Path != "/clusters/"+name {
			return fmt.Errorf("%+v", is.Status)
		}
		return nil
	})
}

func (s *controlled) exists(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exist[uid]
}

// TestLife: a workspace is created and becomes Ready. When it is deleted, its objects are removed, and then the workspace is gone.
// One of the same name that comes later is another one.
func TestLife(t *testing.T) {
	s := startController(t, nil)
	first := s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	if !s.exists(first) {
		t.Error("it is Ready and was not created")
	}
	s.api.Delete(v1alpha1.WorkspaceResource, "", "team")
	fakeapi.Eventually(t, "it is gone", func() error {
		if s.api.Get(v1alpha1.WorkspaceResource, "", "team") != nil {
			return errors.New("it exists")
		}
		return nil
	})
	if s.exists(first) {
		t.Error("its objects are left")
	}
	second := s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	if first == second || !s.exists(second) || s.exists(first) {
		t.Errorf("first %s: %v, second %s: %v", first, s.exists(first), second, s.exists(second))
	}
}

// TestFailures: a workspace that cannot be created, or whose objects cannot be removed, says why, stays, and is tried again.
func TestFailures(t *testing.T) {
	s := startController(t, nil)
	s.fail(errors.New("the database is read-only"))
	uid := s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspacePending, "CreationFailed")
	s.fail(nil)
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	s.fail(errors.New("the database is read-only"))
	s.api.Delete(v1alpha1.WorkspaceResource, "", "team")
	s.becomes(t, "team", v1alpha1.WorkspaceTerminating, "RemovalFailed")
	is := s.api.Get(v1alpha1.WorkspaceResource, "", "team")
	if text := fmt.Sprint(is.Object["status"]); !strings.Contains(text, "the database is read-only") || !s.exists(uid) {
		t.Errorf("%s, exists: %v", text, s.exists(uid))
	}
	s.fail(nil)
	fakeapi.Eventually(t, "it is gone", func() error {
		if s.api.Get(v1alpha1.WorkspaceResource, "", "team") != nil {
			return errors.New("it exists")
		}
		return nil
	})
}

// TestUnready: a workspace that needs more time has the reason in its status, and becomes Ready without a backoff.
func TestUnready(t *testing.T) {
	s := startController(t, nil)
	s.fail(&Unready{Reason: "Copying", Message: "copied 1 of about 2 objects", After: 10 * time.Millisecond})
	s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspacePending, "Copying")
	s.fail(&Unready{Reason: "LimitExceeded", Message: "raise it"})
	s.becomes(t, "team", v1alpha1.WorkspacePending, "LimitExceeded")
	s.fail(nil)
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
}

// TestDirectory: workspaces are found by the watch, and those that it does not have yet by a read. One that is being deleted is not
// found.
func TestDirectory(t *testing.T) {
	s := &controlled{api: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)}
	client, err := dynamic.NewForConfig(s.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	uid := s.create("team")
	d := NewDirectory(client)
	w, err := d.Find(t.Context(), "team") // the watch does not run
	if err != nil || string(w.UID) != uid {
		t.Fatalf("%v, %v", w, err)
	}
	if _, err := d.Find(t.Context(), "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("other: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	fakeapi.Eventually(t, "the watch has it", func() error {
		if _, known := d.ByUID(uid); !known {
			return errors.New("unknown")
		}
		return nil
	})
	if _, err := d.Confirm(t.Context(), "team", uid); err != nil {
		t.Error(err)
	}
	if _, err := d.Confirm(t.Context(), "team", "another"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a workspace of another UID: %v", err)
	}
	s.api.Change(v1alpha1.WorkspaceResource, "", "team", func(u *unstructured.Unstructured) { u.SetFinalizers([]string{v1alpha1.WorkspaceFinalizer}) })
	s.api.Delete(v1alpha1.WorkspaceResource, "", "team")
	fakeapi.Eventually(t, "it is not found", func() error {
		if _, err := d.Find(t.Context(), "team"); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	if _, err := d.Confirm(t.Context(), "team", uid); !errors.Is(err, ErrNotFound) {
		t.Errorf("confirmed although it is being deleted: %v", err)
	}
	// The watch still has the old one when a new one exists.
	s.api.Hold(v1alpha1.WorkspaceResource)
	s.api.Change(v1alpha1.WorkspaceResource, "", "team", func(u *unstructured.Unstructured) { u.SetFinalizers(nil) })
	second := s.create("team")
	if w, err := d.Find(t.Context(), "team"); err != nil || string(w.UID) != second {
		t.Errorf("the new one: %v, %v", w, err)
	}
}

// TestPathOfMoved: a workspace that is Ready at another path, because one above it has moved, gets its new path and is not created again.
func TestPathOfMoved(t *testing.T) {
	s := startController(t, nil)
	uid := s.create("team")
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	s.mu.Lock()
	s.exist[uid] = false
	s.mu.Unlock()
	s.api.Merge(v1alpha1.WorkspaceResource, "", "team", `{"status":{"path":"/clusters/former"}}`)
	s.becomes(t, "team", v1alpha1.WorkspaceReady, "Served")
	if s.exists(uid) {
		t.Error("it was created again")
	}
}
