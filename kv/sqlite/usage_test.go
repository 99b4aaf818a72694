package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func TestUsage(t *testing.T) {
	for _, opts := range []mvcc.Options{{}, {CacheBytes: -1}} {
		t.Run(fmt.Sprint("cache ", opts.CacheBytes), func(t *testing.T) {
			kvtest.Usage(t, 1, func(t testing.TB) ([]kvtest.Limited, func(context.Context) error) {
				db := openTest(t)
				k, err := mvcc.Open(context.Background(), openTable(t, db, "default"), db, opts)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { k.Close() })
				return []kvtest.Limited{k}, db.Check
			})
		})
	}
}

// TestUsageStored: a commit of a keyspace with limits stores the usage. One without does not, and a wrong number is found by Check.
func TestUsageStored(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default").(*table)
	stored := func(want string) {
		t.Helper()
		var got string
		err := table.read(t.Context(), "read", func(c *conn, head kv.Head) error {
			s, err := c.with(qUsage, table.id, head.Revision)
			if err != nil {
				return err
			}
			if s.Step() {
				got = fmt.Sprint(s.ColumnInt64(0), s.ColumnInt64(1))
			}
			return s.Reset()
		})
		if err != nil || got != want {
			t.Errorf("stored: %q, %v, want %q", got, err, want)
		}
	}
	used := func(keys, bytes int64) func(kv.Tx) error {
		return func(tx kv.Tx) error {
			tx.SetUsage(kv.Usage{Keys: keys, Bytes: bytes})
			return changesOf(tx, "a", "1")
		}
	}
	if err := table.Update(t.Context(), nil, used(1, 2)); err != nil {
		t.Fatal(err)
	}
	stored("1 2")
	write(t, table, "b", "22")
	stored("")
	if got, head, err := table.Usage(t.Context()); err != nil || got != (kv.Usage{Keys: 2, Bytes: 5}) || head.Revision != 3 {
		t.Error(got, head, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := table.Update(t.Context(), nil, used(3, 5)); err != nil {
		t.Fatal(err)
	}
	if err := db.Check(t.Context()); err == nil {
		t.Error("Check does not find a wrong usage")
	}
}

func TestUsageOfParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.db")
	kvtest.UsageOfParts(t, func() kvtest.SplitDB { return openFile(t, path) },
		func(db kv.Backend, table kv.Table) (kvtest.Limited, func() error) {
			k, err := mvcc.Open(context.Background(), table, db, mvcc.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return k, k.Close
		})
}
