package tenancy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// family is a controller with the workspace a of the root, whose API is another server.
type family struct {
	root, a   *fakeapi.Server
	directory *Directory
	clock     *clocktesting.FakeClock

	mu    sync.Mutex
	calls []string
}

func startFamily(t *testing.T) *family {
	t.Helper()
	f := &family{root: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...), a: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...), clock: clocktesting.NewFakeClock(time.Now())}
	client := func(of *fakeapi.Server) dynamic.Interface {
		c, err := dynamic.NewForConfig(of.Config())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	f.directory = NewDirectory(client(f.root))
	call := func(verb string) func(context.Context, string, *v1alpha1.Workspace) error {
		return func(_ context.Context, path string, _ *v1alpha1.Workspace) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.calls = append(f.calls, verb+" "+path)
			return nil
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _ = f.directory.Run(ctx) }() // it ends with ctx, and returns nil
	go func() {
		done <- RunController(ctx, ControllerConfig{Client: client(f.root), Directory: f.directory, Clock: f.clock, Log: slog.New(slog.DiscardHandler), Create: call("create"), Remove: call("remove"),
			Open: func(ctx context.Context, path string) (context.Context, dynamic.Interface, func(), error) {
				if path != "a" {
					return nil, nil, nil, ErrNotFound
				}
				return ctx, client(f.a), func() {}, nil
			}})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.put(f.root, "a", v1alpha1.WorkspaceFinalizer)
	return f
}

func (*family) put(in *fakeapi.Server, name, finalizer string) {
	in.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace",
		"metadata": map[string]any{"name": name, "finalizers": []any{finalizer}}}})
}

func (f *family) changes() map[string]string {
	is := &v1alpha1.Workspace{}
	f.root.Read(v1alpha1.WorkspaceResource, "", "a", is)
	return is.Status.Changes
}

// TestNestedLife: a recorded change in a workspace is carried out there. The record stays for as long as the change may take, and the
// controller then looks once more, because a server may have recorded a change that it makes later.
func TestNestedLife(t *testing.T) {
	f := startFamily(t)
	record := func(path string) {
		t.Helper()
		if err := f.directory.RecordChange(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	record("a:missing")
	f.put(f.a, "b", v1alpha1.WorkspaceFinalizer)
	record("a")
	isReady := func(name string) func() error {
		return func() error {
			is := &v1alpha1.Workspace{}
			f.a.Read(v1alpha1.WorkspaceResource, "", name, is)
			if is.Status.Phase != v1alpha1.WorkspaceReady || is.Status.Path != "/clusters/a:"+name {
				return fmt.Errorf("%+v", is.Status)
			}
			return nil
		}
	}
	fakeapi.Eventually(t, "b is Ready", isReady("b"))
	if n := len(f.changes()); n != 2 {
		t.Errorf("%d changes are recorded", n)
	}
	f.put(f.a, "late", v1alpha1.WorkspaceFinalizer) // by a server that ended before it could record it again
	fakeapi.Eventually(t, "the controller has looked again, and removed the records", func() error {
		f.clock.Step(changeLasts)
		if left := f.changes(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	fakeapi.Eventually(t, "the late one is Ready", isReady("late"))

	f.a.Delete(v1alpha1.WorkspaceResource, "", "b")
	record("a")
	fakeapi.Eventually(t, "b is gone", func() error {
		f.clock.Step(time.Second) // a conflict is tried again later
		if f.a.Get(v1alpha1.WorkspaceResource, "", "b") != nil {
			return errors.New("it exists")
		}
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	want := []string{"create a", "create a:b", "create a:late", "remove a:b"}
	if !slices.Equal(slices.Compact(f.calls), want) { // calls may be repeated
		t.Errorf("calls: %v, want %v", f.calls, want)
	}
}
