package tenancy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// forest is a Tree whose open workspaces are their keys. Those in workspaces are in a map, by the key of their parent and their name.
type forest struct {
	*Tree[string]
	api    *fakeapi.Server
	nested map[string]map[string]*v1alpha1.Workspace
}

func newForest(t *testing.T) *forest {
	t.Helper()
	f := &forest{api: fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...), nested: map[string]map[string]*v1alpha1.Workspace{}}
	client, err := dynamic.NewForConfig(f.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	pool := NewPool(t.Context(), Config[string]{Open: func(_ context.Context, key string) (string, error) { return key, nil }, Close: func(string, string) {},
		Idle: time.Minute, OpenTimeout: time.Minute, MaxOpening: 1, Clock: clock.RealClock{}})
	f.Tree = &Tree[string]{Directory: NewDirectory(client), Pool: pool, Child: func(_ context.Context, parent, name string) (*v1alpha1.Workspace, error) {
		if w := f.nested[parent][name]; w != nil {
			return w, nil
		}
		return nil, ErrNotFound
	}}
	return f
}

func (f *forest) plant(name string) (uid string) {
	f.api.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name}}})
	return string(f.api.Get(v1alpha1.WorkspaceResource, "", name).GetUID())
}

// nest adds a workspace with that UID to the one with the parent's key.
func (f *forest) nest(parent, name, uid string) *v1alpha1.Workspace {
	w := &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
	if f.nested[parent] == nil {
		f.nested[parent] = map[string]*v1alpha1.Workspace{}
	}
	f.nested[parent][name] = w
	return w
}

// TestTree: a path leads to the workspace that its names have now. The request ends with any of its ancestors, and all of them stay open
// until then.
func TestTree(t *testing.T) {
	f := newForest(t)
	a := Key(f.plant("a"), "a")
	f.nest(a, "b", "uid-b")
	f.nest("uid-b a:b", "c", "uid-c")
	in, w, release, err := f.Acquire(t.Context(), "a:b:c")
	if err != nil || w != "uid-c a:b:c" {
		t.Fatalf("%q, %v", w, err)
	}
	if awake := f.Pool.Awake(); awake != 3 {
		t.Errorf("%d workspaces are open", awake)
	}
	for _, path := range []string{"b", "a:c", "a:b:b", "a:b:c:d", "c", "a::b", "", ":", "a" + strings.Repeat(":b", MaxDepth)} {
		if _, _, _, err := f.Acquire(t.Context(), path); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", path, err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Pool.End(t.Context(), "uid-b a:b") }()
	<-in.Done()
	if _, _, _, err := f.Acquire(t.Context(), "a:b:c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("while an ancestor ends: %v", err)
	}
	release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// The name exists again: the new workspace has nothing of the old one.
	f.nest(a, "b", "uid-b2")
	if _, _, _, err := f.Acquire(t.Context(), "a:b:c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("in the new workspace: %v", err)
	}
	if _, w, release, err := f.Acquire(t.Context(), "a:b"); err != nil || w != "uid-b2 a:b" {
		t.Errorf("the new workspace: %q, %v", w, err)
	} else {
		release()
	}
}

// TestTreeDeletion: a workspace that is being deleted is not found, and neither are the workspaces in it.
func TestTreeDeletion(t *testing.T) {
	f := newForest(t)
	a := Key(f.plant("a"), "a")
	b := f.nest(a, "b", "uid-b")
	f.nest("uid-b a:b", "c", "uid-c")
	if _, err := f.Confirm(t.Context(), "a:b:c", "uid-c"); err != nil {
		t.Error(err)
	}
	if _, err := f.Confirm(t.Context(), "a:b:c", "another"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a workspace of another UID: %v", err)
	}
	check := func(path, uid string) {
		t.Helper()
		if _, _, _, err := f.Acquire(t.Context(), path); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s is acquired: %v", path, err)
		}
		if _, err := f.Confirm(t.Context(), path, uid); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s is confirmed: %v", path, err)
		}
	}
	now := metav1.Now()
	b.DeletionTimestamp = &now
	check("a:b", "uid-b")
	check("a:b:c", "uid-c")
	b.DeletionTimestamp = nil
	f.api.Change(v1alpha1.WorkspaceResource, "", "a", func(u *unstructured.Unstructured) { u.SetFinalizers([]string{v1alpha1.WorkspaceFinalizer}) })
	f.api.Delete(v1alpha1.WorkspaceResource, "", "a")
	check("a:b", "uid-b")
	check("a:b:c", "uid-c")
}

// TestTreeMove: a workspace that moves to another path is not found at its own, and neither are the workspaces in it.
func TestTreeMove(t *testing.T) {
	f := newForest(t)
	a := Key(f.plant("a"), "a")
	b := f.nest(a, "b", "uid-b")
	f.nest("uid-b a:b", "c", "uid-c")
	check := func(path, uid string) {
		t.Helper()
		if _, _, _, err := f.Acquire(t.Context(), path); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s is acquired: %v", path, err)
		}
		if _, err := f.Confirm(t.Context(), path, uid); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s is confirmed: %v", path, err)
		}
	}
	b.Spec.MovedTo = &v1alpha1.WorkspaceDestination{Path: "b", UID: "uid-b2"}
	check("a:b", "uid-b")
	check("a:b:c", "uid-c")
	b.Spec.MovedTo = nil
	if _, err := f.Confirm(t.Context(), "a:b:c", "uid-c"); err != nil {
		t.Errorf("it is not served again: %v", err)
	}
	uid := string(f.api.Get(v1alpha1.WorkspaceResource, "", "a").GetUID())
	f.api.Merge(v1alpha1.WorkspaceResource, "", "a", `{"spec":{"movedTo":{"path":"x","uid":"y"}}}`)
	check("a", uid)
	check("a:b", "uid-b")
}

// TestIsWithin: a workspace below another one has its path and a colon.
func TestIsWithin(t *testing.T) {
	for path, want := range map[string]bool{"a": true, "a:b": true, "a:b:c": true, "ab": false, "b": false, "b:a": false, "": false} {
		if IsWithin(path, "a") != want {
			t.Errorf("%q: %t", path, !want)
		}
	}
}

// TestCheckNested: the deepest workspace has none in it.
func TestCheckNested(t *testing.T) {
	deepest := "a" + strings.Repeat(":a", MaxDepth-1)
	if err := CheckNested(deepest); err == nil || !strings.Contains(err.Error(), "8 levels") {
		t.Error(err)
	}
	if err := CheckNested(deepest[2:]); err != nil {
		t.Error(err)
	}
}
