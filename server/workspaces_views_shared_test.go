package server_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceViewOfServers: a watch over all consumers on one server has the consumers and objects that come on another one. A position
// of one server is unknown to the other, which answers 410.
func TestWorkspaceViewOfServers(t *testing.T) {
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
	s := viewStageOf(t, one, "shared-")
	s.permit("view")
	other := &viewStage{t: t, atoll: two, name: s.name, exporter: two.workspace(t, s.name+"exporter"), account: two.workspace(t, s.name+"exporter")}
	list, err := s.view(s.account, "*").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.view(other.account, "*").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}); !apierrors.IsResourceExpired(err) {
		t.Errorf("the position of another server: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events, err := s.view(s.account, "*").Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	s.create(clientsOf(t, other.consumer("c")).Resource(sharedWidgets), "w")
	e := <-events.ResultChan()
	if o, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != watch.Added || s.nameOf(o) != "c/w" {
		t.Errorf("%+v", e)
	}
}
