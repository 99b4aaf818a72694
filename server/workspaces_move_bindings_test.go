package server_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// warnings are those that a client got.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// TestWorkspaceMoveBindings: a consumer that moves stays bound, and the exporter's view has it at its new path at once. A workspace that moves
// with its APIExport loses its consumers, and its user is warned before.
func TestWorkspaceMoveBindings(t *testing.T) {
	s := newViewStage(t, "movebind-")
	s.permit("view")
	root := s.config(t)
	for _, name := range []string{"movebind-d", "movebind-moved"} {
		t.Cleanup(func() {
			_ = s.dynamic(t).Resource(tenancy.WorkspaceResource).Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	s.create(clientsOf(t, s.consumer("c")).Resource(sharedWidgets), "w")
	in := func(want string) {
		t.Helper()
		list, err := s.view(s.account, "*").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || s.nameOf(&list.Items[0]) != want {
			t.Fatalf("the view has %v, %v, want %s", list, err, want)
		}
	}
	in("c/w")
	mustMove(t, root, "movebind-c", "movebind-d")
	in("d/w")
	moved := clientsOf(t, s.workspace(t, "movebind-d")).Resource(sharedWidgets)
	s.create(moved, "later")

	warned := &warnings{}
	config := rest.CopyConfig(root)
	config.WarningHandler = warned
	workspaceReadyFor(t, config, "movebind-exporter", "movebind-moved")
	if text := strings.Join(warned.all, "\n"); !strings.Contains(text, "1 APIBindings refer to APIExports of the workspaces that move") {
		t.Errorf("warnings: %s", text)
	}
	mustMove(t, root, "movebind-exporter", "movebind-moved")
	if _, err := moved.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the consumer of an exporter that has moved: %v", err)
	}
	if _, err := clientsOf(t, s.workspace(t, "movebind-moved")).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the exporter at its new path: %v", err)
	}
}
