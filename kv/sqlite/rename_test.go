package sqlite

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func TestRename(t *testing.T) {
	for _, opts := range []mvcc.Options{{}, {CacheBytes: -1}} {
		t.Run(fmt.Sprint("cache ", opts.CacheBytes), func(t *testing.T) {
			db := openTest(t)
			kvtest.Rename(t, kvtest.DropServer{DB: db, Open: func(t testing.TB, table kv.Table) kv.Keyspace {
				k, err := mvcc.Open(context.Background(), table, db, opts)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { k.Close() })
				return k
			}})
			if err := db.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if left := rowsOf(t, db); left != "" {
				t.Error("rows are left:", left)
			}
		})
	}
}

// TestRenameDurable opens the database again: the keyspace has its new name and its rows.
func TestRenameDurable(t *testing.T) {
	db := openTest(t)
	fillAll(t, db, "old")
	before := dump(t, openTable(t, db, "old"), 0) + dump(t, openTable(t, db, "old"), 12)
	if err := db.Rename(t.Context(), "old", "new"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openFile(t, db.Path())
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := db.OpenExisting(t.Context(), "old"); !errors.Is(err, kv.ErrKeyNotFound) {
		t.Errorf("the old name: %v", err)
	}
	if after := dump(t, openTable(t, db, "new"), 0) + dump(t, openTable(t, db, "new"), 12); after != before {
		t.Errorf("%s instead of %s", after, before)
	}
}

// TestRenameTables: a table under the old name neither reads nor writes any more, also without an engine, so no two engines are open
// on the keyspace. One that is not renamed because of an error goes on.
func TestRenameTables(t *testing.T) {
	db := openTest(t)
	old := openTable(t, db, "old")
	write(t, old, "k", "v")
	openTable(t, db, "taken")
	if err := db.Rename(t.Context(), "old", "taken"); !errors.Is(err, kv.ErrKeyspaceExists) {
		t.Fatal(err)
	}
	write(t, old, "k", "w")
	if err := db.Rename(t.Context(), "old", "new"); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Head(t.Context()); !errors.Is(err, kv.ErrRenamed) {
		t.Errorf("read: %v", err)
	}
	if err := old.Update(t.Context(), nil, func(kv.Tx) error { return nil }); !errors.Is(err, kv.ErrRenamed) || !errors.Is(err, kv.ErrDropped) {
		t.Errorf("write: %v", err)
	}
	write(t, openTable(t, db, "new"), "k", "x")
}
