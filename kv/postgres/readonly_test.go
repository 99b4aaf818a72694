package postgres

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

func TestReadOnly(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	_, err := OpenReadOnly(t.Context(), s.URL(), option)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "start a server") {
		t.Errorf("empty database: %v", err)
	}
	if n := sql(t, s, `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'atoll_%' AND nspname NOT IN (SELECT nspname FROM pg_class c JOIN pg_namespace n ON c.relnamespace = n.oid)`); n != "0" {
		t.Errorf("OpenReadOnly has created %s schemas", n)
	}
	write(t, openTable(t, openURL(t, s.URL(), option), "default"), "a", "1", "b", "2")
	db, err := OpenReadOnly(t.Context(), s.URL(), option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table := openTable(t, db, "default")
	if got := dump(t, table, 0); got != "a=1@2 b=2@3" {
		t.Error(got)
	}
	if _, err := db.Open(t.Context(), "other"); !errors.Is(err, kv.ErrKeyNotFound) {
		t.Errorf("a missing keyspace: %v", err)
	}
	if err := table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, "c", "3") }); !errors.Is(err, kv.ErrInvalidRequest) {
		t.Errorf("update: %v", err)
	}
	if err := table.SetCompacted(t.Context(), 2); !errors.Is(err, kv.ErrInvalidRequest) {
		t.Errorf("compact: %v", err)
	}
	if _, err := table.Sweep(t.Context(), 1); !errors.Is(err, kv.ErrInvalidRequest) {
		t.Errorf("sweep: %v", err)
	}
	sql(t, s, `UPDATE `+db.opts.schema+`.meta SET version = version - 1`)
	if _, err := OpenReadOnly(t.Context(), s.URL(), option); !errors.Is(err, kv.ErrInvalidRequest) || !strings.Contains(err.Error(), "start a server") {
		t.Errorf("an old schema: %v", err)
	}
}

// TestReadOnlyStandby checks that a standby can be inspected before deciding whether to
// promote it.
func TestReadOnlyStandby(t *testing.T) {
	t.Parallel()
	s := own(t)
	write(t, openTable(t, openURL(t, s.URL()), "default"), "a", "1")
	standby, err := s.Standby(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop() })
	db, err := OpenReadOnly(t.Context(), standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table := openTable(t, db, "default")
	if got := dump(t, table, 0); got != "a=1@2" {
		t.Error(got)
	}
	if h, err := table.History(t.Context()); err != nil || h.Changes != 1 {
		t.Error(h, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
