package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
)

// sharedKeyspace opens one keyspace as two servers do: each with its own engine and
// connections.
func sharedKeyspace(t *testing.T) (first, second *kubernetes.Client) {
	t.Helper()
	open := func() *kubernetes.Client {
		db := inPostgres(t)
		keyspace, err := partition.Open(t.Context(), t.Name(), &parts{db, t.Name(), mvcc.Options{}, nil}, partition.Options{LeaseInterval: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		client, err := etcd.InProcess(keyspace, t.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = client.Close()
			if err := errors.Join(keyspace.Close(), db.Close()); err != nil {
				t.Error(err)
			}
		})
		return client
	}
	return open(), open()
}

// TestKindsOfTwoServers runs two servers on one keyspace, each with its own source. One
// source gets a group before the other.
func TestKindsOfTwoServers(t *testing.T) {
	t.Parallel()
	keyspaces := [2]*kubernetes.Client{}
	keyspaces[0], keyspaces[1] = sharedKeyspace(t)
	sources := [2]*source{newSource(shops()...), newSource(shops()...)}
	files := makeFiles(t)
	var servers [2]running
	for i := range servers {
		cfg := files
		cfg.Kinds = servedBySource(sources[i])
		servers[i] = startServer(t, keyspaces[i], cfg, fmt.Sprintf("server-%d", i))
	}
	t.Cleanup(func() {
		for _, s := range servers {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("objects", func(t *testing.T) { kindsBetween(t, servers) })
	t.Run("a group that one has first", func(t *testing.T) { kindsOfOneFirst(t, servers, sources) })
}

// kindsBetween: the watches of one server see what the other stores, and concurrent
// writes of both to one object are not lost.
func kindsBetween(t *testing.T, servers [2]running) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, second := dynamicClient(t, servers[0].config).Resource(shopWidgets), dynamicClient(t, servers[1].config).Resource(shopWidgets)
	list, err := second.Namespace("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := second.Namespace("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	told := func(kind watch.EventType, name string) *unstructured.Unstructured {
		t.Helper()
		select {
		case e := <-events.ResultChan():
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok || e.Type != kind || u.GetName() != name {
				t.Fatalf("got event %s %v, want %s %s", e.Type, e.Object, kind, name)
			}
			return u
		case <-ctx.Done():
			t.Fatalf("no event %s %s", kind, name)
			return nil
		}
	}
	made, err := first.Namespace("default").Create(ctx, widget("shared", `{"size":1}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := told(watch.Added, "shared"); got.GetUID() != made.GetUID() || got.GetResourceVersion() != made.GetResourceVersion() {
		t.Errorf("got %s at %s, want %s at %s", got.GetUID(), got.GetResourceVersion(), made.GetUID(), made.GetResourceVersion())
	}
	// Each server changes it in turn, based on what it reads.
	for n := range 6 {
		client := []interface {
			Get(context.Context, string, metav1.GetOptions, ...string) (*unstructured.Unstructured, error)
			Update(context.Context, *unstructured.Unstructured, metav1.UpdateOptions, ...string) (*unstructured.Unstructured, error)
		}{first.Namespace("default"), second.Namespace("default")}[n%2]
		u, err := client.Get(ctx, "shared", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		size, _, _ := unstructured.NestedInt64(u.Object, "spec", "size")
		if size != int64(n+1) {
			t.Errorf("server %d reads size %d after %d changes", n%2, size, n)
		}
		_ = unstructured.SetNestedField(u.Object, size+1, "spec", "size")
		if _, err := client.Update(ctx, u, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		told(watch.Modified, "shared")
	}
	// Both servers reject a write that is based on an old version.
	_ = unstructured.SetNestedField(made.Object, int64(50), "spec", "size")
	if _, err := second.Namespace("default").Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a write based on an old version: %v", err)
	}
	if err := first.Namespace("default").Delete(ctx, "shared", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	told(watch.Deleted, "shared")
}

// kindsOfOneFirst: a server that does not know a group yet answers 503, and does not
// harm its objects or their namespace. When it learns of the group it serves the
// existing objects.
func kindsOfOneFirst(t *testing.T, servers [2]running, sources [2]*source) {
	late := shops()[0]
	late.Name = "late.example.com"
	lateWidgets := shopWidgets
	lateWidgets.Group = late.Name
	const path = "/apis/late.example.com/v1/namespaces/kept/widgets/early"
	if _, err := servers[1].client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The server that learns of it first does not run the controllers.
	sources[1].serve(late)
	early := widget("early", `{"size":1}`)
	early.SetAPIVersion("late.example.com/v1")
	early.SetNamespace("kept")
	early.SetFinalizers([]string{"example.com/held"})
	client := dynamicClient(t, servers[1].config).Resource(lateWidgets).Namespace("kept")
	await(t, "one server accepts an object", func() error {
		_, err := client.Create(t.Context(), early, metav1.CreateOptions{})
		return err
	})
	if code, _, body := ask(t, servers[0].config, path); code != http.StatusNotFound {
		t.Errorf("the other server: %d %s", code, body)
	}
	sources[0].serve(late)
	await(t, "the other server serves the group", func() error {
		if code, _, body := ask(t, servers[0].config, path); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	// The controllers, in the server that learned of it last, also empty the namespace
	// of its objects.
	if err := servers[1].client.CoreV1().Namespaces().Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the object is deleted with its namespace", func() error {
		u, err := client.Get(t.Context(), "early", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if u.GetDeletionTimestamp() == nil {
			return errors.New("no deletion timestamp")
		}
		return nil
	})
	if _, err := client.Patch(t.Context(), "early", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the namespace is gone", func() error {
		_, err := servers[0].client.CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it still exists (%v)", err)
	})
	for i := range sources {
		sources[i].withdraw(late.Name)
		await(t, "a server no longer serves it", func() error {
			if code, _, _ := ask(t, servers[i].config, "/apis/late.example.com/v1/widgets"); code != http.StatusNotFound {
				return fmt.Errorf("%d", code)
			}
			return nil
		})
	}
}
