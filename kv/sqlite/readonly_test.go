package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

func putOne(t *testing.T, table kv.Table, key, value string) {
	t.Helper()
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
		rev := tx.Head().Revision + 1
		old, err := tx.Load([]kv.Lookup{{Key: []byte(key)}})
		if err != nil {
			return err
		}
		e := kv.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: rev, ModRevision: rev, Version: 1}
		ch := kv.Change{KV: e}
		if old[0] != nil {
			ch.KV.CreateRevision, ch.KV.Version, ch.PrevRevision = old[0].CreateRevision, old[0].Version+1, old[0].ModRevision
		}
		return tx.Write(rev, []kv.Change{ch})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestReadOnlyBesideServer checks that a reader beside the server immediately sees
// acknowledged writes, and cannot write. Opening and closing it does not disturb the
// server.
func TestReadOnlyBesideServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.db")
	db, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	table, err := db.Open(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	putOne(t, table, "a", "1")

	for round := range 3 {
		ro, err := OpenReadOnly(path)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := ro.Open(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			putOne(t, table, "a", "2")
			want, err := table.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			res, head, err := seen.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, true)
			if err != nil || head != want || len(res.KVs) != 1 || string(res.KVs[0].Value) != "2" {
				t.Fatalf("round %d: read %+v at %+v (%v), want head %+v", round, res, head, err, want)
			}
		}
		got, err := seen.(kv.Inspector).Inspect(t.Context())
		if err != nil || got.Keys != 1 || got.History != int64(5*(round+1)) || got.LastCommit.IsZero() {
			t.Errorf("inspected %+v: %v", got, err)
		}
		if err := ro.Check(t.Context()); err != nil {
			t.Errorf("check: %v", err)
		}
		for what, err := range map[string]error{
			"update":  seen.Update(t.Context(), nil, func(kv.Tx) error { return nil }),
			"compact": seen.SetCompacted(t.Context(), 2),
		} {
			if !errors.Is(err, kv.ErrInvalidRequest) {
				t.Errorf("%s on a database open for reading: %v", what, err)
			}
		}
		if _, err := ro.Open(t.Context(), "two"); !errors.Is(err, kv.ErrKeyNotFound) {
			t.Errorf("open a missing keyspace: %v", err)
		}
		if err := ro.Close(); err != nil {
			t.Fatal(err)
		}
	}
	putOne(t, table, "b", "3")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// After a clean shutdown of the server the reader must find all data, and leave the
	// file unchanged.
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ro, err := OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := ro.Keyspaces(context.Background()); err != nil || strings.Join(names, " ") != "one" {
		t.Errorf("keyspaces %q: %v", names, err)
	}
	if err := ro.Close(); err != nil {
		t.Error(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(before) != string(after) {
		t.Errorf("reading has changed the file (%v)", err)
	}
}

func TestReadOnlyCreatesNothing(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenReadOnly(filepath.Join(dir, "none.db"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open a missing file: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("created %v", left)
	}
	other := filepath.Join(dir, "other.db")
	if err := os.WriteFile(other, []byte("not a database, only some text that is long enough to be read as a header of a file........................"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReadOnly(other); err == nil {
		t.Error("opened a file that is not a database")
	}
}
