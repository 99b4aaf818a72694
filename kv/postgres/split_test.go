package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestLayoutMigration opens a schema from before partitions existed.
func TestLayoutMigration(t *testing.T) {
	schema := schemaOf(t)
	var o options
	schema(&o)
	url := server(t).SocketURL()
	db := openURL(t, url, schema)
	store := openStore(t, db, mvcc.Options{})
	put := func(ks kv.Keyspace, key string) {
		t.Helper()
		if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key)}}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(store, "/a/1")
	store.Close()
	db.Close()
	if _, err := server(t).Exec(t.Context(), fmt.Sprintf(`ALTER TABLE %[1]s.head DROP COLUMN layout, DROP COLUMN lost, `+withoutUsage+`; DROP TABLE %[1]s.former, %[1]s.instance, %[1]s.server, %[1]s.alarm, %[1]s.dropped; DROP INDEX %[1]s.keyspace_names; UPDATE %[1]s.meta SET version = 1`, o.schema)); err != nil {
		t.Fatal(err)
	}
	db = openURL(t, url, schema)
	put(openStore(t, db, mvcc.Options{}), "/a/2")
	moved, err := db.Split(t.Context(), "default", "/a/", kv.SplitOptions{})
	if err != nil || moved.Keys != 2 {
		t.Fatalf("moved %+v, %v", moved, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSplitWaitsForHead runs a split and a commit concurrently: one is after the other. A
// commit after the split is refused, and writes nothing.
func TestSplitWaitsForHead(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	if err := table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "/a/1", "v") }); err != nil {
		t.Fatal(err)
	}
	split := make(chan error, 1)
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
		go func() {
			moved, err := db.Split(t.Context(), "default", "/a/", kv.SplitOptions{})
			if err == nil && moved.Keys != 2 {
				err = fmt.Errorf("moved %+v: the earlier commit is missing", moved)
			}
			split <- err
		}()
		return changesOf(tx, "/a/2", "v")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-split; err != nil {
		t.Fatal(err)
	}
	err = table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "/a/3", "v") })
	if !errors.Is(err, kv.ErrRepartitioned) {
		t.Errorf("a commit after the split: %v", err)
	}
	// When reopened, it has the remaining keys, and the partition has the others.
	again := openTable(t, db, "default")
	if again == table {
		t.Fatal("Open returned the invalidated table")
	}
	for name, want := range map[string]int64{"default": 0, kv.PartitionName("default", "/a/"): 2} {
		res, _, err := openTable(t, db, name).Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, true)
		if err != nil || res.Count != want {
			t.Errorf("%s holds %+v, %v", name, res, err)
		}
	}
	if _, err := db.Open(t.Context(), kv.PartitionName("default", "/b/")); !errors.Is(err, kv.ErrKeyNotFound) {
		t.Errorf("open a missing partition: %v", err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
