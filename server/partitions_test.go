package server_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/server"
)

// openOffline opens the datastore of a stopped server.
func openOffline(t *testing.T, dir string) *server.Datastore {
	t.Helper()
	db, err := server.OpenDatastore(t.Context(), server.SQLiteURL(filepath.Join(dir, "atoll.db")))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func newEvent(name string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "x"},
	}
}

// TestSplitOfAStoppedServer moves events and configmaps out of a used keyspace. Its
// clients must continue to work.
func TestSplitOfAStoppedServer(t *testing.T) {
	dir := t.TempDir()
	cfg := server.Config{DataDir: dir, WithoutWorkloadAPIs: true}
	s := newServer(t, cfg)
	create := func(name string) *corev1.Event {
		t.Helper()
		e, err := s.client(t).CoreV1().Events("default").Create(t.Context(), newEvent(name), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.client(t).CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return e
	}
	first := create("first")
	create("second")
	before, err := s.client(t).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}

	db := openOffline(t, dir)
	for _, prefix := range []string{"/registry/events/", "/registry/configmaps/"} {
		if moved, err := db.Split(t.Context(), server.Workspace, prefix, kv.SplitOptions{}); err != nil || moved.Keys < 2 {
			t.Fatalf("split %s: %+v, %v", prefix, moved, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	s = newServer(t, cfg)
	events := s.client(t).CoreV1().Events("default")
	after, err := events.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(after.Items, before.Items, func(a, b corev1.Event) bool {
		return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
	}) {
		t.Errorf("events before %v, after %v", before.Items, after.Items)
	}
	// A watch from before the split lists again, as after any compaction, or continues.
	// A watch from now on gets only new events.
	for _, since := range []string{after.ResourceVersion, first.ResourceVersion} {
		w, err := events.Watch(t.Context(), metav1.ListOptions{ResourceVersion: since})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		name := "new-since-" + since
		create(name)
		e := <-w.ResultChan()
		for e.Type == watch.Bookmark { // progress that another watch has requested
			e = <-w.ResultChan()
		}
		switch {
		case e.Type == watch.Error && since == first.ResourceVersion:
		case e.Type != watch.Added || e.Object.(*corev1.Event).Name != name:
			t.Errorf("watch from %s gets %+v", since, e)
		}
		w.Stop()
	}
	// This resource has a watch cache.
	maps := s.client(t).CoreV1().ConfigMaps("default")
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) < 3 {
		t.Fatalf("configmaps: %d, %v", len(list.Items), err)
	}
	if err := maps.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	// Lists are consistent and come from the cache, whatever the order of its
	// revisions. A list that does not come from the cache takes 3 s to fall back.
	begin, lists := time.Now(), 10
	for i := range lists {
		if _, err := s.client(t).CoreV1().Secrets("default").Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("elsewhere-", i)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The controllers add one of their own at some time.
		now, err := maps.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		has := func(name string) bool {
			return slices.ContainsFunc(now.Items, func(m corev1.ConfigMap) bool { return m.Name == name })
		}
		if has("first") || !has("second") {
			t.Errorf("configmaps after the first was deleted: %v", now.Items)
		}
	}
	if took := time.Since(begin); took > time.Duration(lists)*2*time.Second {
		t.Errorf("%d consistent lists took %v", lists, took)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}

	// New events are attached to leases, which their partition also has.
	db = openOffline(t, dir)
	defer db.Close()
	table, err := db.Open(t.Context(), kv.PartitionName(server.Workspace, "/registry/events/"))
	if err != nil {
		t.Fatal(err)
	}
	res, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, false)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := table.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.KVs {
		if e.Lease == 0 || !slices.ContainsFunc(leases, func(l kv.LeaseRecord) bool { return l.ID == e.Lease }) {
			t.Errorf("event %s has lease %d, of %v", e.Key, e.Lease, leases)
		}
	}
}

// TestPartitionsFromTheBeginning checks that only a new datastore is divided.
func TestPartitionsFromTheBeginning(t *testing.T) {
	dir := t.TempDir()
	cfg := server.Config{DataDir: dir, WithoutWorkloadAPIs: true, Partitions: []string{"events", "leases.coordination.k8s.io", "widgets.example.com"}}
	for _, name := range []string{"new", "again"} { // the second time the partitions exist
		s := newServer(t, cfg)
		if _, err := s.client(t).CoreV1().Events("default").Create(t.Context(), newEvent(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
	db := openOffline(t, dir)
	names, err := db.Keyspaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := kv.PartitionPrefixes(server.Workspace, names)
	slices.Sort(got)
	if want := []string{"/registry/events/", "/registry/example.com/widgets/", "/registry/leases/"}; !slices.Equal(got, want) {
		t.Errorf("partitions %q, want %q", got, want)
	}
	table, err := db.Open(t.Context(), kv.PartitionName(server.Workspace, "/registry/events/"))
	if err != nil {
		t.Fatal(err)
	}
	if res, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, false); err != nil || len(res.KVs) < 2 {
		t.Errorf("the partition of events holds %v, %v", res, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	cfg.Partitions = []string{"namespaces"}
	_, err = server.New(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "atoll kv split") {
		t.Errorf("partitions of existing data: %v", err)
	}
	for _, wrong := range [][]string{{"/registry"}, {"a b"}, {"/registry/", "events"}, {"events", "events"}} {
		cfg.Partitions = wrong
		if _, err := server.New(t.Context(), cfg); err == nil {
			t.Errorf("partitions %q were accepted", wrong)
		}
	}
}
