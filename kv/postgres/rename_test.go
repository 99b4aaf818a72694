package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// TestRename has two servers on one database: each notices what the other one renames.
func TestRename(t *testing.T) {
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
		kvtest.Rename(t, servers...)
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if left := rowsOf(t, db); left != "" {
			t.Error("rows are left:", left)
		}
	})
}

// TestLostRename checks that a rename whose answer is lost finds out that it has happened.
func TestLostRename(t *testing.T) {
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
			go func() { done <- db.Rename(context.Background(), "a", "b") }()
			eventually(t, "a reply is lost", func() bool { return p.Counts()[pgproxy.CommitRepliesLost] > lost })
			p.Set(pgproxy.Faults{})
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Head(t.Context()); !errors.Is(err, kv.ErrRepartitioned) {
				t.Error(err)
			}
			renamed, err := db.OpenExisting(t.Context(), "b")
			if err != nil {
				t.Fatal(err)
			}
			if head, err := renamed.Head(t.Context()); err != nil || head.Revision != 2 {
				t.Errorf("%+v, %v", head, err)
			}
			if err := db.Rename(t.Context(), "a", "b"); !errors.Is(err, kv.ErrKeyNotFound) {
				t.Errorf("a repetition: %v", err)
			}
		})
	}
}

// TestRenameWaitsForCommit runs a rename and a commit concurrently: the commit is kept, and the next one fails.
func TestRenameWaitsForCommit(t *testing.T) {
	t.Parallel()
	db := openTest(t)
	opened := openTable(t, db, "a")
	renamed := make(chan error, 1)
	err := opened.Update(t.Context(), nil, func(tx kv.Tx) error {
		go func() { renamed <- db.Rename(context.Background(), "a", "b") }()
		return changesOf(tx, "k", "v")
	})
	if err != nil {
		t.Fatal("the earlier commit:", err)
	}
	if err := <-renamed; err != nil {
		t.Fatal(err)
	}
	if err := opened.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "k", "w") }); !errors.Is(err, kv.ErrRepartitioned) {
		t.Error("a commit after the rename:", err)
	}
	if head, err := openTable(t, db, "b").Head(t.Context()); err != nil || head.Revision != 2 {
		t.Errorf("%+v, %v", head, err)
	}
}
