package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestDrop has two servers on one database: each notices what the other one drops.
func TestDrop(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		schema := d.schema(t)
		var servers []kvtest.DropServer
		var db *DB
		for _, name := range []string{"two", "one"} {
			db = openURL(t, d.as(t, name), schema)
			servers = append(servers, kvtest.DropServer{DB: db, Open: func(t testing.TB, table kv.Table) kv.Keyspace {
				k, err := mvcc.Open(context.Background(), table, db, mvcc.Options{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { k.Close() })
				return k
			}})
		}
		kvtest.Drop(t, servers...)
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if left := rowsOf(t, db); left != "" {
			t.Error("rows are left:", left)
		}
	})
}

// rowsOf counts the rows of each table that has some, after the time for which dropped
// keyspaces are remembered.
func rowsOf(t testing.TB, db *DB) (counts string) {
	t.Helper()
	err := db.read(t.Context(), "pass the time", statementLimit, func(c *conn) error {
		return c.simple(`UPDATE dropped SET since = since - interval '25 hours'`, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = db.Purge(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"keyspace", "dropped", "head", "log", "segment", "current", "lease", "sweep", "former", "alarm"} {
		err := db.read(t.Context(), "count rows", statementLimit, func(c *conn) error {
			return c.simple(`SELECT count(*) FROM `+table, func(cols [][]byte) {
				if n := string(cols[0]); n != "0" {
					counts += table + " " + n + " "
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
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
	if err == nil {
		err = table.SetNoSpaceAlarm(t.Context(), true)
	}
	if err == nil {
		err = table.Recover(t.Context(), func(tx kv.Tx) error { return changesOf(tx, "e", "x") })
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, table, "d", "x", "a", "y")
}

// TestPurgeAfterCrash has another server continue after each step, and opens the database
// again from time to time. Keyspaces that were not dropped stay as they were, and at the end
// no row of the dropped ones is left.
func TestPurgeAfterCrash(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{2, 1000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			schema := schemaOf(t)
			url := server(t).SocketURL()
			db, next := openURL(t, url, schema), openURL(t, url, schema)
			fillAll(t, db, "kept")
			want := rowsOf(t, db)
			fillAll(t, db, "one")
			if _, err := db.Split(t.Context(), "two", "/a/", kv.SplitOptions{EmptyOnly: true}); err != nil {
				t.Fatal(err)
			}
			fillAll(t, db, kv.PartitionName("two", "/a/"))
			fillAll(t, db, "two")
			before := dump(t, openTable(t, db, "kept"), 0)
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
				db, next = next, db
				if steps%16 == 0 {
					db.Close()
					db = openURL(t, url, schema)
					if err := db.Check(t.Context()); err != nil {
						t.Fatalf("after step %d: %v", steps, err)
					}
				}
				if got := dump(t, openTable(t, db, "kept"), 0); got != before {
					t.Fatalf("after step %d: %s instead of %s", steps, got, before)
				}
			}
			if got := rowsOf(t, db); got != want {
				t.Errorf("%d steps left %sinstead of %s", steps, got, want)
			}
			if limit == 2 && steps < 30 {
				t.Errorf("only %d steps", steps)
			}
		})
	}
}

// TestDroppedTable checks every method of a table of another server.
func TestDroppedTable(t *testing.T) {
	t.Parallel()
	schema := schemaOf(t)
	url := server(t).SocketURL()
	db, other := openURL(t, url, schema), openURL(t, url, schema)
	for name, call := range map[string]func(ctx context.Context, t *table) error{
		"Head": func(ctx context.Context, t *table) error { _, err := t.Head(ctx); return err },
		"Range": func(ctx context.Context, t *table) error {
			_, _, err := t.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil)}, true)
			return err
		},
		"Update": func(ctx context.Context, t *table) error {
			return t.Update(ctx, nil, func(tx kv.Tx) error { return changesOf(tx, "k", "v") })
		},
		"TryUpdate": func(ctx context.Context, t *table) error {
			_, done, err := t.TryUpdate(ctx, nil, func(tx kv.Tx) error { return changesOf(tx, "k", "v") })
			if done {
				return errors.New("it was committed")
			}
			return err
		},
		"Changes": func(ctx context.Context, t *table) error {
			_, _, err := t.Changes(ctx, 0, 9, 9, false)
			return err
		},
		"SetCompacted":    func(ctx context.Context, t *table) error { return t.SetCompacted(ctx, 2) },
		"Sweep":           func(ctx context.Context, t *table) error { _, err := t.Sweep(ctx, 9); return err },
		"Leases":          func(ctx context.Context, t *table) error { _, err := t.Leases(ctx); return err },
		"LeaseKeys":       func(ctx context.Context, t *table) error { _, _, err := t.LeaseKeys(ctx, 1); return err },
		"History":         func(ctx context.Context, t *table) error { _, err := t.History(ctx); return err },
		"Inspect":         func(ctx context.Context, t *table) error { _, err := t.Inspect(ctx); return err },
		"NoSpaceAlarm":    func(ctx context.Context, t *table) error { _, err := t.NoSpaceAlarm(ctx); return err },
		"SetNoSpaceAlarm": func(ctx context.Context, t *table) error { return t.SetNoSpaceAlarm(ctx, true) },
		"Recover": func(ctx context.Context, t *table) error {
			return t.Recover(ctx, func(tx kv.Tx) error { return changesOf(tx, "k", "v") })
		},
		"Follow": func(ctx context.Context, t *table) error { return t.Follow(ctx, func(kv.Revision) {}) },
		// A connection made later, instead of a call.
		"connect": func(ctx context.Context, t *table) error {
			c, err := t.db.connect(ctx)
			if err != nil {
				return err
			}
			c.close()
			return t.usable()
		},
	} {
		t.Run(name, func(t *testing.T) {
			opened := openTable(t, other, name)
			write(t, opened, "k", "v")
			if err := db.Drop(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := call(t.Context(), opened); !errors.Is(err, kv.ErrDropped) || errors.Is(err, kv.ErrBehind) {
					t.Error(err)
				}
			}
			eventually(t, "the table is forgotten", func() bool {
				other.mu.Lock()
				defer other.mu.Unlock()
				return other.tables[name] == nil
			})
			for more := true; more; {
				var err error
				if more, err = db.Purge(t.Context(), 100); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestDropAfterPurge checks that a server notices a drop although all other rows of the
// keyspace are gone by then.
func TestDropAfterPurge(t *testing.T) {
	t.Parallel()
	schema := schemaOf(t)
	url := server(t).SocketURL()
	db, other := openURL(t, url, schema), openURL(t, url, schema)
	for _, name := range []string{"a", kv.PartitionName("a", "/p/")} {
		if _, err := db.Split(t.Context(), "a", "/p/", kv.SplitOptions{EmptyOnly: true}); err != nil && !errors.Is(err, kv.ErrPartitionExists) {
			t.Fatal(err)
		}
		for call, try := range map[string]func(*table) error{
			"write": func(tab *table) error {
				return tab.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "k", "v") })
			},
			"sweep": func(tab *table) error { _, err := tab.Sweep(t.Context(), 9); return err },
		} {
			opened := openTable(t, other, name)
			write(t, opened, "k", "v")
			if err := db.Drop(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			for more := true; more; {
				var err error
				if more, err = db.Purge(t.Context(), 100); err != nil {
					t.Fatal(err)
				}
			}
			if err := try(opened); !errors.Is(err, kv.ErrDropped) {
				t.Errorf("%s %s: %v", call, name, err)
			}
			if _, err := db.Split(t.Context(), "a", "/p/", kv.SplitOptions{EmptyOnly: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDropWaitsForCommit runs a drop and a commit concurrently: one is after the other.
func TestDropWaitsForCommit(t *testing.T) {
	t.Parallel()
	db := openTest(t)
	opened := openTable(t, db, "a")
	dropped := make(chan error, 1)
	err := opened.Update(t.Context(), nil, func(tx kv.Tx) error {
		go func() { dropped <- db.Drop(context.Background(), "a") }()
		return changesOf(tx, "k", "v")
	})
	if err != nil {
		t.Fatal("the earlier commit:", err)
	}
	if err := <-dropped; err != nil {
		t.Fatal(err)
	}
	if err := opened.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "k", "v") }); !errors.Is(err, kv.ErrDropped) {
		t.Error("a commit after the drop:", err)
	}
}

// TestDropReadOnly checks that a read-only database refuses, and says why.
func TestDropReadOnly(t *testing.T) {
	t.Parallel()
	schema := schemaOf(t)
	url := server(t).SocketURL()
	openTable(t, openURL(t, url, schema), "a")
	db, err := OpenReadOnly(t.Context(), url, schema)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Drop(t.Context(), "a"); !errors.Is(err, kv.ErrInvalidRequest) {
		t.Error(err)
	}
	if _, err := db.Purge(t.Context(), 1); !errors.Is(err, kv.ErrInvalidRequest) {
		t.Error(err)
	}
}

// TestDropMigration opens a schema from before keyspaces could be dropped.
func TestDropMigration(t *testing.T) {
	t.Parallel()
	schema := schemaOf(t)
	var o options
	schema(&o)
	url := server(t).SocketURL()
	db := openURL(t, url, schema)
	fillAll(t, db, "a")
	before := dump(t, openTable(t, db, "a"), 0)
	db.Close()
	sql(t, server(t), fmt.Sprintf(`ALTER TABLE %[1]s.head `+withoutUsage+`; DROP TABLE %[1]s.dropped; DROP INDEX %[1]s.keyspace_names; UPDATE %[1]s.meta SET version = 4`, o.schema))
	db = openURL(t, url, schema)
	if got := dump(t, openTable(t, db, "a"), 0); got != before {
		t.Errorf("%s instead of %s", got, before)
	}
	if err := db.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if left := rowsOf(t, db); left != "" {
		t.Error("rows are left:", left)
	}
}

// TestLostDrop checks that a drop whose answer is lost finds out that it has happened, and
// that a commit whose answer was lost is not acknowledged after a drop and a purge.
func TestLostDrop(t *testing.T) {
	for _, which := range append(pgproxy.Databases(), pgproxy.PostgreSQL) {
		t.Run("as "+string(which), func(t *testing.T) {
			t.Parallel()
			d := emulate(t, which, 1)
			db, p := d.open(t), d.proxy
			opened := openTable(t, db, "a")
			write(t, opened, "k", "v")
			done := make(chan error, 1)
			lost := p.Counts()[pgproxy.CommitRepliesLost]
			p.Set(pgproxy.Faults{LoseCommitReply: 1})
			go func() { done <- db.Drop(t.Context(), "a") }()
			eventually(t, "a reply is lost", func() bool { return p.Counts()[pgproxy.CommitRepliesLost] > lost })
			p.Set(pgproxy.Faults{})
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Head(t.Context()); !errors.Is(err, kv.ErrDropped) {
				t.Error(err)
			}

			opened = openTable(t, db, "a")
			id := sought{commitID: commitID{rev: 2, token: [tokenSize]byte{1}}}
			other := openURL(t, d.as(t, "other"), WithSchema(db.opts.schema))
			if err := other.Drop(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if _, err := other.Purge(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
			if reached, err := opened.resolve(t.Context(), time.Minute, id, errors.New("connection reset")); reached != 0 || err != nil {
				t.Errorf("reached %d, %v", reached, err)
			}
			if err := opened.usable(); !errors.Is(err, kv.ErrDropped) {
				t.Error("not noticed by the look-up:", err)
			}
		})
	}
}
