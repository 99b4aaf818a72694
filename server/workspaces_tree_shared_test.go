package server_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceTreeOfServers: a list on one server has the workspaces that another one created a moment ago, and a watch has those that come
// while it runs, with their objects.
func TestWorkspaceTreeOfServers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	first := t.TempDir()
	one := ownServer(t, server.Config{DataDir: first, Datastore: db.URL()})
	two := ownServer(t, server.Config{Datastore: db.URL(), TokenFile: filepath.Join(first, "token")})
	named(t, two.createWorkspace(t, "a"), "config")
	named(t, two.createNested(t, "a", "x"), "config")
	all, seen := clientsOf(t, one.workspace(t, "*")).Resource(configMaps), metav1.ListOptions{LabelSelector: "seen=yes"}
	list, err := all.List(t.Context(), seen)
	if err != nil {
		t.Fatal(err)
	}
	wantObjects(t, pathsOf(list.Items), "a/config", "a:x/config")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	seen.ResourceVersion = list.GetResourceVersion()
	w, err := all.Watch(ctx, seen)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	named(t, two.createWorkspace(t, "b"), "late")
	named(t, two.createNested(t, "a:x", "y"), "late")
	var got []string
	for len(got) < 2 {
		e := <-w.ResultChan()
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type != watch.Added {
			t.Fatalf("%+v", e)
		}
		got = append(got, pathsOf([]unstructured.Unstructured{*o})...)
	}
	slices.Sort(got)
	wantObjects(t, got, "a:x:y/late", "b/late")
}
