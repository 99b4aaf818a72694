package tenancy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestHeld: the value of a workspace that is served lacks annotations and contents, and one that is not complete has the contents, from
// which the controller creates it. The object of the API is not changed.
func TestHeld(t *testing.T) {
	object := func(phase string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace",
			"metadata": map[string]any{"name": "a", "uid": "u", "labels": map[string]any{"k": "v"}, "annotations": map[string]any{"long": "text"}},
			"spec": map[string]any{"owner": map[string]any{"username": "jane", "groups": []any{"dev"}}, "limits": map[string]any{"objects": int64(7)},
				"initial": map[string]any{"namespaces": []any{map[string]any{"name": "shop"}}}},
			"status": map[string]any{"phase": phase}}}
	}
	for _, phase := range []v1alpha1.WorkspacePhase{v1alpha1.WorkspaceReady, v1alpha1.WorkspacePending} {
		from := object(string(phase))
		got, err := held(from)
		w, ok := got.(*v1alpha1.Workspace)
		if err != nil || !ok {
			t.Fatalf("%T, %v", got, err)
		}
		if w.Name != "a" || w.UID != "u" || w.Labels["k"] != "v" || w.Spec.Owner.Username != "jane" || w.Spec.Owner.Groups[0] != "dev" ||
			*w.Spec.Limits.Objects != 7 || w.Status.Phase != phase {
			t.Errorf("%s: %+v", phase, w)
		}
		if w.Annotations != nil || (w.Spec.Initial != nil) != (phase == v1alpha1.WorkspacePending) {
			t.Errorf("%s: annotations %v, contents %v", phase, w.Annotations, w.Spec.Initial)
		}
		if len(from.GetAnnotations()) != 1 || from.Object["spec"].(map[string]any)["initial"] == nil {
			t.Errorf("%s: the object was changed: %v", phase, from.Object)
		}
		if again, err := held(w); err != nil || again != got {
			t.Errorf("%s: a value that is held already: %v, %v", phase, again, err)
		}
	}
}

// TestElectedAgain: a server that is elected a second time completes workspaces from before its election, and has no handler of the first time.
func TestElectedAgain(t *testing.T) {
	api := fakeapi.New(t, fakeapi.CRDsOf(t, v1alpha1.CRDs)...)
	client, err := dynamic.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	directory := NewDirectory(client)
	go func() { _ = directory.Run(t.Context()) }() // it ends with the test, and returns nil
	var created [2]atomic.Int32
	lead := func(term int, name string) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- RunController(ctx, ControllerConfig{Client: client, Directory: directory, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
				Create: func(context.Context, string, *v1alpha1.Workspace) error { created[term].Add(1); return nil },
				Remove: func(context.Context, string, *v1alpha1.Workspace) error {
					return errors.New("nothing is being deleted")
				}})
		}()
		fakeapi.Eventually(t, name+" is Ready", func() error {
			w := &v1alpha1.Workspace{}
			api.Read(v1alpha1.WorkspaceResource, "", name, w)
			if w.Status.Phase != v1alpha1.WorkspaceReady {
				return fmt.Errorf("it is %q", w.Status.Phase)
			}
			return nil
		})
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	put := func(name string) {
		api.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name}}})
	}
	put("one")
	lead(0, "one")
	before := created[0].Load()
	put("two")
	lead(1, "two")
	if created[0].Load() != before || created[1].Load() == 0 {
		t.Errorf("the first time created %d and then %d, the second one %d", before, created[0].Load(), created[1].Load())
	}
}
