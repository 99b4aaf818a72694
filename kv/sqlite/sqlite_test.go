package sqlite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

func openTest(t testing.TB, opts ...Option) *DB {
	t.Helper()
	return openFile(t, filepath.Join(t.TempDir(), "kv.db"), opts...)
}

func openFile(t testing.TB, path string, opts ...Option) *DB {
	t.Helper()
	db, err := Open(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func openTable(t testing.TB, db *DB, name string) kv.Table {
	t.Helper()
	table, err := db.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// write puts (or with value "", deletes) keys, each in its own revision.
func write(t testing.TB, table kv.Table, pairs ...string) {
	t.Helper()
	if err := table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, pairs...) }); err != nil {
		t.Fatal(err)
	}
}

// changesOf makes the changes of write inside an update.
func changesOf(tx kv.Tx, pairs ...string) error {
	rev := tx.Head().Revision
	var changes []kv.Change
	for i := 0; i < len(pairs); i += 2 {
		rev++
		key, value := []byte(pairs[i]), []byte(pairs[i+1])
		old, err := tx.Load([]kv.Lookup{{Key: key}})
		if err != nil {
			return err
		}
		ch := kv.Change{Deleted: len(value) == 0, KV: kv.KeyValue{
			Key: key, Value: value, ModRevision: rev, CreateRevision: rev, Version: 1}}
		if o := old[0]; o != nil {
			ch.PrevRevision, ch.KV.CreateRevision, ch.KV.Version = o.ModRevision, o.CreateRevision, o.Version+1
		}
		changes = append(changes, ch)
	}
	return tx.Write(rev, changes)
}

func dump(t testing.TB, table kv.Table, rev kv.Revision) (out string) {
	t.Helper()
	res, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), Revision: rev}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.KVs {
		out += fmt.Sprintf("%s=%s@%d ", e.Key, e.Value, e.ModRevision)
	}
	return out
}

// TestOddPaths: the database is in the file of the given name, whatever characters the name
// contains.
func TestOddPaths(t *testing.T) {
	for _, name := range []string{"a#1", "a b", "a?b", "a%20b", "a+b", "a&b=c", "ä"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			db := openFile(t, filepath.Join(dir, name, "kv.db"))
			write(t, openTable(t, db, "default"), "a", "1")
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 1 || entries[0].Name() != name {
				t.Errorf("in its directory: %v, %v", entries, err)
			}
			if fi, err := os.Stat(filepath.Join(dir, name, "kv.db")); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", fi, err)
			}
			reader, err := OpenReadOnly(filepath.Join(dir, name, "kv.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if names, err := reader.Keyspaces(t.Context()); err != nil || len(names) != 1 {
				t.Error(names, err)
			}
		})
	}
}

func TestInUse(t *testing.T) {
	db := openTest(t)
	_, err := Open(db.Path())
	if !errors.Is(err, kv.ErrInUse) || !strings.Contains(err.Error(), db.Path()) {
		t.Errorf("second open: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	openFile(t, db.Path())
}

func TestForeignFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		sql  string
		want error
		say  string
	}{
		"newer":   {fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(migrations)+1), kv.ErrNewerSchema, "upgrade Atoll"},
		"another": {"CREATE TABLE shopping (item TEXT)", kv.ErrInvalidRequest, "another application"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kv.db")
			c, err := sqlite3.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Exec(tc.sql); err != nil {
				t.Fatal(err)
			}
			c.Close()
			before, _ := os.ReadFile(path)
			_, err = Open(path)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.say) || !strings.Contains(err.Error(), path) {
				t.Errorf("open: %v", err)
			}
			if c, err = sqlite3.Open(path); err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if name == "another" {
				if err := c.Exec("INSERT INTO shopping VALUES ('milk')"); err != nil {
					t.Errorf("the file has changed: %v (%d bytes before)", err, len(before))
				}
			}
		})
	}
	t.Run("not a database", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kv.db")
		if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Error(err)
		}
	})
}

var update = flag.Bool("update", false, "write new testdata, for a new schema version")

// TestOldVersions opens a file of every released schema version. These files never change.
func TestOldVersions(t *testing.T) {
	newest := fmt.Sprintf("testdata/v%d.db", len(migrations))
	if *update {
		path := filepath.Join(t.TempDir(), "kv.db")
		db, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		table := openTable(t, db, "default")
		write(t, table, "a", "1", "b", "1", "a", "2", "b", "", "c", "3", "c", "4")
		if err := table.SetCompacted(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		if _, err := table.Sweep(t.Context(), 1); err != nil { // leave a part of the sweep to do
			t.Fatal(err)
		}
		err = table.Update(t.Context(), nil, func(tx kv.Tx) error { return tx.PutLease(kv.LeaseRecord{ID: 7, TTL: 60, Beat: 3}) })
		if err != nil {
			t.Fatal(err)
		}
		write(t, openTable(t, db, "other"), "x", "y")
		write(t, openTable(t, db, "dropped"), "x", "1", "x", "2")
		if err := db.Drop(t.Context(), "dropped"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Purge(t.Context(), 1); err != nil { // leave a part to do
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, newest); err != nil {
			t.Fatal(err)
		}
	}
	for v := 1; v <= len(migrations); v++ {
		path := filepath.Join(t.TempDir(), "kv.db")
		data, err := os.ReadFile(fmt.Sprintf("testdata/v%d.db", v))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		db := openFile(t, path)
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
		names, err := db.Keyspaces(t.Context())
		if err != nil || fmt.Sprint(names) != "[default other]" {
			t.Error(names, err)
		}
		table := openTable(t, db, "default")
		for more := true; more; {
			if more, err = table.Sweep(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if got := dump(t, table, 0) + "/ " + dump(t, table, 4); got != "a=2@4 c=4@7 / a=2@4 b=1@3 " {
			t.Error(got)
		}
		write(t, table, "b", "5")
		if got := dump(t, table, 0); got != "a=2@4 b=5@8 c=4@7 " {
			t.Error(got)
		}
		for more := true; more; {
			if more, err = db.Purge(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		leases, err := table.Leases(t.Context())
		want := "[{7 60 3}]"
		if v == 1 { // it had no beats
			want = "[{7 60 0}]"
		}
		if err != nil || fmt.Sprint(leases) != want {
			t.Error(leases, err)
		}
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestPlans checks that no statement scans a table or sorts, for any data.
func TestPlans(t *testing.T) {
	db := openTest(t)
	err := db.read(t.Context(), "explain", func(c *conn) error {
		for q, sql := range queries {
			if q := query(q); q <= qRollbackTo || q == qKeyspaces || q == qNewKeyspace || q == qFence {
				continue
			}
			s, _, err := c.c.Prepare("EXPLAIN QUERY PLAN " + sql)
			if err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
			for s.Step() {
				step := s.ColumnText(3)
				if strings.HasPrefix(step, "SCAN") && step != "SCAN CONSTANT ROW" || strings.Contains(step, "TEMP B-TREE") || strings.Contains(step, "AUTOMATIC") {
					t.Errorf("%s\n\t%s", sql, step)
				}
			}
			s.Close()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestKeyspacesShare has several keyspaces written at once: each has its own revisions, and
// a failure of one does not affect the others.
func TestKeyspacesShare(t *testing.T) {
	db := openTest(t)
	errFail := errors.New("no")
	var wg sync.WaitGroup
	for i := range 8 {
		table := openTable(t, db, fmt.Sprint("ks", i))
		wg.Go(func() {
			for n := range 50 {
				write(t, table, "key", fmt.Sprint(n))
				err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
					rev := tx.Head().Revision + 1
					if err := tx.Write(rev, []kv.Change{{KV: kv.KeyValue{Key: []byte("bad"), ModRevision: rev, Version: 1}}}); err != nil {
						return err
					}
					return errFail
				})
				if !errors.Is(err, errFail) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		if got := dump(t, openTable(t, db, fmt.Sprint("ks", i)), 0); got != "key=49@51 " {
			t.Error(got)
		}
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestFileStaysFlat updates and compacts for a long time, and checks that swept space is
// reused.
func TestFileStaysFlat(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	round := func() {
		var pairs []string
		for i := range 500 {
			pairs = append(pairs, fmt.Sprintf("key-%04d", i*7%500), strings.Repeat("v", 500))
		}
		pairs = append(pairs, "gone", "soon", "gone", "")
		write(t, table, pairs...)
		head, err := table.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := table.SetCompacted(t.Context(), head.Revision); err != nil {
			t.Fatal(err)
		}
		for more := true; more; {
			if more, err = table.Sweep(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	size := func() int64 {
		_, inUse, err := db.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return inUse
	}
	for range 3 {
		round()
	}
	early := size()
	for range 30 {
		round()
	}
	if late := size(); late > early*5/4 {
		t.Errorf("%d bytes in use after 3 rounds, %d after 33", early, late)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCheckFinds corrupts data for Check to detect.
func TestCheckFinds(t *testing.T) {
	for what, sql := range map[string]string{
		"current":     `UPDATE current SET mod = mod - 1 WHERE key = x'61'`,
		"lost change": `DELETE FROM log WHERE rev = 4`,
		"lost key":    `DELETE FROM current WHERE key = x'62'`,
		"segment":     `DELETE FROM segment WHERE rev = 4`,
		"lease":       `UPDATE current SET lease = 9 WHERE key = x'61'; UPDATE log SET lease = 9 WHERE id = (SELECT id FROM current WHERE key = x'61')`,
	} {
		t.Run(what, func(t *testing.T) {
			db := openTest(t)
			write(t, openTable(t, db, "default"), "a", "1", "b", "1", "a", "2", "b", "2")
			write(t, openTable(t, db, "default"), "c", "1")
			if err := db.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if what == "segment" {
				sql = `DELETE FROM segment WHERE rev < 6`
			}
			if err := db.writer.do(t.Context(), func(c *conn) error { return c.c.Exec(sql) }); err != nil {
				t.Fatal(err)
			}
			if err := db.Check(t.Context()); err == nil {
				t.Error("no findings")
			}
		})
	}
}

// TestFence checks that the commit which proves a failed one undone does write to the log:
// SQLite skips writes that change nothing.
func TestFence(t *testing.T) {
	db := openTest(t)
	write(t, openTable(t, db, "default"), "a", "1")
	length := func() int64 { return db.writer.walPages.Load() }
	before := length()
	db.writer.fenced = true
	write(t, openTable(t, db, "default"), "a", "2")
	after := length()
	write(t, openTable(t, db, "default"), "a", "3")
	if fence := (after - before) - (length() - after); fence != 1 || db.writer.fenced {
		t.Errorf("the fence wrote %d pages", fence)
	}
}

func TestCanceled(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := table.Update(ctx, nil, func(kv.Tx) error { return io.EOF })
	if !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if _, err := table.Head(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	db.Close()
	if _, err := table.Head(t.Context()); !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
	if err := table.Update(t.Context(), nil, func(kv.Tx) error { return nil }); !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
}
