package etcd_test

import (
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// TestDropped drops a keyspace that clients use. Their calls and watches end with the
// reason, and with a code that clients do not retry.
func TestDropped(t *testing.T) {
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "workspace")
	if err != nil {
		t.Fatal(err)
	}
	ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ks.Close() })
	_, client := serve(t, ks, etcd.Options{})
	watch := client.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	<-watch // it is created
	if _, err := client.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if err := db.Drop(t.Context(), "workspace"); err != nil {
		t.Fatal(err)
	}
	_, put := client.Put(t.Context(), "k", "v")
	_, get := client.Get(t.Context(), "k")
	for name, err := range map[string]error{"put": put, "get": get} {
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), `"workspace"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var last error
	for resp := range watch {
		last = resp.Err()
	}
	if last == nil || !strings.Contains(last.Error(), "keyspace was dropped") {
		t.Errorf("the watch ended with %v", last)
	}
}
