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

func TestDrop(t *testing.T) {
	for _, opts := range []mvcc.Options{{}, {CacheBytes: -1}} {
		t.Run(fmt.Sprint("cache ", opts.CacheBytes), func(t *testing.T) {
			db := openTest(t)
			kvtest.Drop(t, kvtest.DropServer{DB: db, Open: func(t testing.TB, table kv.Table) kv.Keyspace {
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

// rowsOf counts the rows of each table that has some.
func rowsOf(t testing.TB, db *DB) (counts string) {
	t.Helper()
	err := db.read(t.Context(), "count rows", func(c *conn) error {
		for _, table := range []string{"keyspace", "dropped", "log", "segment", "current", "lease"} {
			n, err := c.queryInt(`SELECT count(*) FROM ` + table)
			if err != nil {
				return err
			}
			if n > 0 {
				counts += fmt.Sprintf("%s %d ", table, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// fillAll fills a keyspace so that it has every kind of row, and a sweep that is not finished.
func fillAll(t testing.TB, db *DB, name string) {
	t.Helper()
	table := openTable(t, db, name)
	for i := range 5 {
		write(t, table, "a", fmt.Sprint(i), "b", fmt.Sprint(i), "c", "x", "c", "")
	}
	if err := table.SetCompacted(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Sweep(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
		return errors.Join(tx.PutLease(kv.LeaseRecord{ID: 1, TTL: 60}), tx.PutLease(kv.LeaseRecord{ID: 2, TTL: 60}))
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, table, "d", "x", "a", "y")
}

// TestPurgeAfterCrash opens the database again after each step. Keyspaces that were not
// dropped stay as they were, and at the end no row of the dropped ones is left.
func TestPurgeAfterCrash(t *testing.T) {
	for _, limit := range []int{2, 1000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			db := openTest(t)
			path := db.Path()
			fillAll(t, db, "kept")
			want := rowsOf(t, db)
			fillAll(t, db, "one")
			if _, err := db.Split(t.Context(), "two", "/a/", kv.SplitOptions{EmptyOnly: true}); err != nil {
				t.Fatal(err)
			}
			fillAll(t, db, "two")
			fillAll(t, db, kv.PartitionName("two", "/a/"))
			before := dump(t, openTable(t, db, "kept"), 0) + dump(t, openTable(t, db, "kept"), 12)
			for _, name := range []string{"one", "two"} {
				if err := db.Drop(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			steps := 0
			for more := true; more; steps++ {
				var err error
				if more, err = db.Purge(t.Context(), limit); err != nil {
					t.Fatal(err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				db = openFile(t, path)
				if err := db.Check(t.Context()); err != nil {
					t.Fatalf("after step %d: %v", steps, err)
				}
				table := openTable(t, db, "kept")
				if got := dump(t, table, 0) + dump(t, table, 12); got != before {
					t.Fatalf("after step %d: %s instead of %s", steps, got, before)
				}
			}
			if got := rowsOf(t, db); got != want {
				t.Errorf("%d steps left %sinstead of %s", steps, got, want)
			}
			if limit == 2 && steps < 25 {
				t.Errorf("only %d steps", steps)
			}
			names, err := db.Keyspaces(t.Context())
			if err != nil || fmt.Sprint(names) != "[kept]" {
				t.Error(names, err)
			}
		})
	}
}

// TestDroppedIDs checks that the ID of a dropped keyspace is not used again, even after its
// last row was removed and the database was closed.
func TestDroppedIDs(t *testing.T) {
	db := openTest(t)
	id := openTable(t, db, "a").(*table).id
	reader, err := OpenReadOnly(db.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	read, err := reader.OpenExisting(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Purge(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	path := db.Path()
	db.Close()
	db = openFile(t, path)
	again := openTable(t, db, "a")
	if again.(*table).id == id {
		t.Errorf("ID %d is used again", id)
	}
	write(t, again, "secret", "new")
	if _, err := read.Head(t.Context()); !errors.Is(err, kv.ErrDropped) {
		t.Errorf("a process that reads the old one: %v", err)
	}
	if _, ok := kv.Backend(reader).(kv.Dropper); ok {
		t.Error("a read-only database drops keyspaces")
	}
}

// TestDroppedTable checks every method of a table, also for those without an engine.
func TestDroppedTable(t *testing.T) {
	db := openTest(t)
	opened := openTable(t, db, "a").(*table)
	var told []error
	opened.OnDrop(func(err error) { told = append(told, err) })
	opened.OnDrop(func(error) { t.Error("called after stop") })()
	if err := db.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	opened.OnDrop(func(err error) { told = append(told, err) })
	if len(told) != 2 || !errors.Is(told[0], kv.ErrDropped) || !errors.Is(told[1], kv.ErrDropped) {
		t.Errorf("the engines were told %v", told)
	}
	write(t, openTable(t, db, "a"), "k", "v")
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Head":   func() error { _, err := opened.Head(ctx); return err },
		"Range":  func() error { _, _, err := opened.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil)}, true); return err },
		"Update": func() error { return opened.Update(ctx, nil, func(kv.Tx) error { t.Error("called"); return nil }) },
		"Changes": func() error {
			_, _, err := opened.Changes(ctx, 0, 9, 9, false)
			return err
		},
		"SetCompacted":    func() error { return opened.SetCompacted(ctx, 2) },
		"Sweep":           func() error { _, err := opened.Sweep(ctx, 9); return err },
		"Leases":          func() error { _, err := opened.Leases(ctx); return err },
		"LeaseKeys":       func() error { _, _, err := opened.LeaseKeys(ctx, 1); return err },
		"History":         func() error { _, err := opened.History(ctx); return err },
		"Inspect":         func() error { _, err := opened.Inspect(ctx); return err },
		"NoSpaceAlarm":    func() error { _, err := opened.NoSpaceAlarm(ctx); return err },
		"SetNoSpaceAlarm": func() error { return opened.SetNoSpaceAlarm(ctx, true) },
	} {
		if err := call(); !errors.Is(err, kv.ErrDropped) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
