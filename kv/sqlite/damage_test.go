package sqlite_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

const (
	walHeader = 32
	walFrame  = 24 + 4096
)

// written is a database and its write-ahead log as a process leaves them that is killed between two commits.
type written struct {
	db, wal []byte
	last    kv.Revision // of the last commit
}

// value is that of a revision. Some need pages of their own.
func valueOf(rev kv.Revision) []byte {
	return fmt.Appendf(nil, "%d %s", rev, strings.Repeat(string(rune('a'+rev%26)), int(rev*371%9000)))
}

// writer commits to a database, one revision each.
type commits struct {
	t    *testing.T
	path string
	db   *sqlite.DB
	k    *mvcc.Keyspace
	last kv.Revision
}

func startCommits(t *testing.T, opts ...sqlite.Option) *commits {
	t.Helper()
	c := &commits{t: t, path: filepath.Join(t.TempDir(), "kv.db")}
	c.open(opts...)
	return c
}

func (c *commits) open(opts ...sqlite.Option) {
	c.t.Helper()
	db, err := sqlite.Open(c.path, opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	table, err := db.Open(c.t.Context(), "default")
	if err != nil {
		c.t.Fatal(err)
	}
	if c.k, err = mvcc.Open(c.t.Context(), table, db, mvcc.Options{}); err != nil {
		c.t.Fatal(err)
	}
	c.db = db
	c.t.Cleanup(func() { c.k.Close(); c.db.Close() })
}

func (c *commits) put(n int) {
	c.t.Helper()
	for range n {
		next := max(c.last, 1) + 1
		res, err := c.k.Txn(c.t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: fmt.Appendf(nil, "key/%d", next%40), Value: valueOf(next)}}}})
		if err != nil {
			c.t.Fatal(err)
		}
		if c.last = res.Revision; c.last != next {
			c.t.Fatalf("revision %d, want %d", c.last, next)
		}
	}
}

func (c *commits) files() written {
	c.t.Helper()
	w := written{last: c.last}
	for suffix, to := range map[string]*[]byte{"": &w.db, "-wal": &w.wal} {
		content, err := os.ReadFile(c.path + suffix)
		if err != nil {
			c.t.Fatal(err)
		}
		*to = content
	}
	return w
}

// put writes the files, and returns the database's path.
func (w written) put(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kv.db")
	for suffix, content := range map[string][]byte{"": w.db, "-wal": w.wal} {
		if err := os.WriteFile(path+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// damagedAt returns the files with 4 KiB of the log overwritten.
func (w written) damagedAt(offset int) written {
	w.wal = bytes.Clone(w.wal)
	rnd := rand.New(rand.NewPCG(1, uint64(offset)))
	for i := range w.wal[offset:min(offset+4096, len(w.wal))] {
		w.wal[offset+i] = byte(rnd.Uint32())
	}
	return w
}

// check opens a database and returns its revision, after it has compared all keys with the writes up to there.
func check(t *testing.T, path string) kv.Revision {
	t.Helper()
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	res, head, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]kv.Revision{}
	for rev := kv.Revision(2); rev <= head.Revision; rev++ {
		want[fmt.Sprintf("key/%d", rev%40)] = rev
	}
	for _, e := range res.KVs {
		if e.ModRevision != want[string(e.Key)] || !bytes.Equal(e.Value, valueOf(e.ModRevision)) {
			t.Errorf("%s at revision %d, want %d: %.30q", e.Key, e.ModRevision, want[string(e.Key)], e.Value)
		}
	}
	if len(res.KVs) != len(want) {
		t.Errorf("%d keys, want %d", len(res.KVs), len(want))
	}
	return head.Revision
}

// refused expects that a database is refused, and unchanged.
func refused(t *testing.T, w written) (path string) {
	t.Helper()
	path = w.put(t)
	db, err := sqlite.Open(path)
	if err == nil {
		db.Close()
		t.Fatal("a damaged database was opened")
	}
	if !errors.Is(err, kv.ErrDamaged) || !strings.Contains(err.Error(), path+"-wal") || !strings.Contains(err.Error(), "atoll kv recover") {
		t.Errorf("%v", err)
	}
	if db, err := sqlite.OpenReadOnly(path); !errors.Is(err, kv.ErrDamaged) {
		t.Error("a damaged database was opened for reading", db, err)
	}
	for suffix, want := range map[string][]byte{"": w.db, "-wal": w.wal} {
		if got, err := os.ReadFile(path + suffix); err != nil || !bytes.Equal(got, want) {
			t.Errorf("kv.db%s was changed, %v", suffix, err)
		}
	}
	return path
}

// TestDamagedLogIsRefused overwrites 4 KiB at many places of the log.
func TestDamagedLogIsRefused(t *testing.T) {
	c := startCommits(t)
	c.put(300)
	w := c.files()
	frames := (len(w.wal) - walHeader) / walFrame
	if frames < 600 {
		t.Fatalf("only %d frames", frames)
	}
	// The last two transactions cannot be told from one that was being written.
	for frame := 0; frame < frames-30; frame += frames / 17 {
		offset := walHeader + frame*walFrame + (frame*977)%walFrame
		if frame == 0 {
			offset = 0
		}
		t.Run(fmt.Sprintf("frame=%d", frame+1), func(t *testing.T) {
			damaged := w.damagedAt(offset)
			path := refused(t, damaged)
			dry, err := sqlite.RepairFile(t.Context(), path, true)
			if err != nil || dry == nil || dry.Complete || len(dry.Kept) > 0 {
				t.Fatalf("%+v, %v", dry, err)
			}
			if got, err := os.ReadFile(path + "-wal"); err != nil || !bytes.Equal(got, damaged.wal) {
				t.Error("a dry run has changed the log")
			}
			done, err := sqlite.RepairFile(t.Context(), path, false)
			if err != nil || len(done.Kept) != 2 || len(done.Keyspaces) != len(dry.Keyspaces) {
				t.Fatalf("%+v, %v", done, err)
			}
			for i, kept := range done.Kept {
				if got, err := os.ReadFile(kept); err != nil || !bytes.Equal(got, [][]byte{damaged.db, damaged.wal}[i]) {
					t.Errorf("%s does not have the damaged file, %v", kept, err)
				}
			}
			if offset == 0 {
				return // the log began with the schema
			}
			if len(done.Keyspaces) != 1 || done.Keyspaces[0].Name != "default" {
				t.Fatalf("%+v", done.Keyspaces)
			}
			if got := check(t, path); got != done.Keyspaces[0].Revision || got < kv.Revision(frame/8) || got >= w.last {
				t.Errorf("revision %d, reported %+v", got, done.Keyspaces[0])
			}
			if last := done.Keyspaces[0].Last; last != w.last {
				t.Errorf("the last revision is reported as %d, want %d", last, w.last)
			}
			entries, err := os.ReadDir(filepath.Dir(path))
			if err != nil || len(entries) > 4 {
				t.Errorf("files remain: %v", entries)
			}
		})
	}
}

// TestDamageBeforeCheckpoint: the database file has what the damaged part of the log had, so nothing is lost.
func TestDamageBeforeCheckpoint(t *testing.T) {
	c := startCommits(t)
	c.put(100)
	// A reader keeps the log from being restarted.
	if err := sqlite.CheckpointBesideReader(c.db, func() { c.put(60) }); err != nil {
		t.Fatal(err)
	}
	w := c.files()
	for _, percent := range []int{0, 5, 20, 40} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			path := refused(t, w.damagedAt(len(w.wal)*percent/100))
			done, err := sqlite.RepairFile(t.Context(), path, false)
			if err != nil {
				t.Fatal(err)
			}
			if !done.Complete || check(t, path) != w.last {
				t.Errorf("%+v", done)
			}
		})
	}
}

// TestTornLogIsOpened: whatever a crash leaves of the last transaction, the database is opened with all others.
func TestTornLogIsOpened(t *testing.T) {
	c := startCommits(t)
	c.put(50)
	before := c.files()
	c.put(1)
	w := c.files()
	tail := len(w.wal) - len(before.wal)
	if tail < walFrame {
		t.Fatalf("the last transaction has %d bytes", tail)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		torn := w
		torn.wal = bytes.Clone(w.wal)
		for at := len(before.wal); at < len(torn.wal); at += 512 {
			if rnd.IntN(100) < 40 {
				clear(torn.wal[at:min(at+512, len(torn.wal))])
			}
		}
		if i%2 == 0 {
			torn.wal = torn.wal[:len(before.wal)+rnd.IntN(tail)]
		}
		if got := check(t, torn.put(t)); got < before.last {
			t.Errorf("revision %d, want at least %d", got, before.last)
		}
	}
}

// TestRestOfOlderTransaction: the remains of a transaction that was never acknowledged stay in the log behind later ones.
func TestRestOfOlderTransaction(t *testing.T) {
	c := startCommits(t)
	c.put(50)
	before := c.files()
	c.put(1)
	torn := c.files()
	clear(torn.wal[len(before.wal) : len(before.wal)+walFrame])
	next := &commits{t: t, path: torn.put(t), last: before.last}
	next.open()
	if res, err := next.k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte("key/7")}}}}}); err != nil || res.Revision != before.last+1 {
		t.Fatal(res, err)
	}
	w := next.files()
	path := w.put(t)
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Check(t.Context()), db.Close()); err != nil {
		t.Error(err)
	}
}

// TestOlderGeneration: frames from before the log was restarted are not damage.
func TestOlderGeneration(t *testing.T) {
	c := startCommits(t)
	c.put(100)
	if err := sqlite.CheckpointBesideReader(c.db, nil); err != nil {
		t.Fatal(err)
	}
	size := len(c.files().wal)
	c.put(3)
	w := c.files()
	if len(w.wal) != size {
		t.Fatal("the log was not restarted")
	}
	if got := check(t, w.put(t)); got != w.last {
		t.Errorf("revision %d, want %d", got, w.last)
	}
	// The power failed while the header was written.
	torn := c.files()
	if err := sqlite.CheckpointBesideReader(c.db, nil); err != nil {
		t.Fatal(err)
	}
	torn = c.files()
	clear(torn.wal[8:24])
	if got := check(t, torn.put(t)); got != torn.last {
		t.Errorf("torn header: revision %d, want %d", got, torn.last)
	}
}

func TestShortLogs(t *testing.T) {
	c := startCommits(t)
	c.put(20)
	path := c.path
	if err := errors.Join(c.k.Close(), c.db.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, wal := range map[string][]byte{
		"empty": {}, "part of a header": make([]byte, 20), "zeros": make([]byte, walHeader+3*walFrame),
		"garbage": bytes.Repeat([]byte("garbage "), 2000),
	} {
		t.Run(name, func(t *testing.T) {
			w := written{db: db, wal: wal, last: c.last}
			if got := check(t, w.put(t)); got != c.last {
				t.Errorf("revision %d, want %d", got, c.last)
			}
			if done, err := sqlite.RepairFile(t.Context(), w.put(t), false); done != nil || err != nil {
				t.Errorf("%+v, %v", done, err)
			}
		})
	}
}

// TestIncompleteHead: a database file whose last commit is incomplete is refused.
func TestIncompleteHead(t *testing.T) {
	for what, damage := range map[string]string{
		"change":  `DELETE FROM log WHERE id = (SELECT max(id) FROM log)`,
		"current": `DELETE FROM current WHERE id = (SELECT max(id) FROM log)`,
	} {
		t.Run(what, func(t *testing.T) {
			c := startCommits(t)
			c.put(20)
			if err := errors.Join(c.k.Close(), c.db.Close()); err != nil {
				t.Fatal(err)
			}
			execFile(t, c.path, damage)
			if db, err := sqlite.Open(c.path); !errors.Is(err, kv.ErrDamaged) || !strings.Contains(err.Error(), c.path) || !strings.Contains(err.Error(), "backup") {
				t.Error(db, err)
			}
		})
	}
}

// execFile runs SQL on a file that no process has open.
func execFile(t *testing.T, path, sql string) {
	t.Helper()
	c, err := sqlite3.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Exec(sql), c.Close()); err != nil {
		t.Fatal(err)
	}
}
