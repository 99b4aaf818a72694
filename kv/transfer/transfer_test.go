package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
	"github.com/atoll-dev/atoll/kv/transfer"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	src, dst := open(t), open(t)
	fill(t, src, 500)
	var steps int64
	res, err := transfer.Copy(t.Context(), src, dst, transfer.Options{Progress: transfer.ProgressHooks{Step: func(k, _ int64) { steps += k }}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, src, dst)
	if want := int64(len(state(t, src))); res.Keys != want || res.Put != want || steps != want || res.Leases != 3 {
		t.Errorf("copied %+v, %d steps, want %d keys and 3 leases", res, steps, want)
	}
	l, err := dst.TimeToLive(t.Context(), 101, true)
	if err != nil || l.Granted != 601*time.Second || len(l.Keys) == 0 {
		t.Errorf("lease 101 in the target: %+v, %v", l, err)
	}
	if got := verified(t, src, res.Source, dst, transfer.Options{}); got.Equal != res.Keys {
		t.Errorf("verified %+v, want %d equal", got, res.Keys)
	}
	// After a change, the source is compared at the revision of the copy.
	src.put(t, "later", "1", 0)
	verified(t, src, res.Source, dst, transfer.Options{})
	// After a compaction of that revision, later changes cannot be compared; the rest can.
	st, _ := src.Status(t.Context())
	if _, err := src.Compact(t.Context(), st.Revision, true); err != nil {
		t.Fatal(err)
	}
	if got := verified(t, src, res.Source, dst, transfer.Options{}); got.Changed != 1 || got.Equal != res.Keys {
		t.Errorf("verified after a compaction %+v", got)
	}
	if got, err := transfer.Verify(t.Context(), src, 0, dst, transfer.Options{}); err != nil || got.Different != 1 || !strings.Contains(got.Differences[0], "later") {
		t.Errorf("verify the current state: %+v, %v", got, err)
	}
}

// TestChange: the target gets the keys of the source as they are changed, and not those that are left out, also from a backup. A repeated
// copy writes only the differences.
func TestChange(t *testing.T) {
	t.Parallel()
	src, dst := open(t), open(t)
	for _, key := range []string{"changed", "kept", "left out"} {
		src.put(t, key, "value", 0)
	}
	dst.put(t, "left out", "of an earlier copy", 0)
	failed := errors.New("cannot be changed")
	var err error
	opts := transfer.Options{Existing: transfer.Mirror, Change: func(_ context.Context, e kv.KeyValue) (kv.KeyValue, bool, error) {
		if string(e.Key) == "changed" {
			e.Value = []byte("another")
		}
		return e, string(e.Key) != "left out", err
	}}
	for _, put := range []int64{2, 0} {
		res, err := transfer.Copy(t.Context(), src, dst, opts)
		if err != nil || res.Put != put {
			t.Fatalf("%+v, %v, want %d put", res, err, put)
		}
		if got := state(t, dst); len(got) != 2 || got["changed"] != "0 another" || got["kept"] != "0 value" {
			t.Errorf("the target has %q", got)
		}
	}
	err = failed
	if _, err := transfer.Copy(t.Context(), src, dst, opts); !errors.Is(err, failed) {
		t.Error(err)
	}
}

func TestCopyIntoATargetWithKeys(t *testing.T) {
	t.Parallel()
	prepare := func(t *testing.T) (src, dst *store) {
		src, dst = open(t), open(t)
		fill(t, src, 300)
		dst.put(t, "key/00000", "other", 0)
		dst.put(t, "a/own", "stays or goes", 0)
		dst.put(t, "z/own", "stays or goes", 0)
		dst.put(t, "empty", "", 0)
		return src, dst
	}
	t.Run("refuse", func(t *testing.T) {
		src, dst := prepare(t)
		var notEmpty *transfer.NotEmptyError
		if _, err := transfer.Copy(t.Context(), src, dst, transfer.Options{}); !errors.As(err, &notEmpty) || notEmpty.Keys != 4 {
			t.Fatalf("copy: %v", err)
		}
		if n := len(state(t, dst)); n != 4 {
			t.Errorf("the target has %d keys", n)
		}
	})
	t.Run("dry run", func(t *testing.T) {
		src, dst := prepare(t)
		before := state(t, dst)
		res, err := transfer.Copy(t.Context(), src, dst, transfer.Options{Existing: transfer.Mirror, DryRun: true})
		if err != nil || res.Deleted != 2 || res.Equal != 1 || res.Put != res.Keys-1 {
			t.Errorf("dry run: %+v, %v", res, err)
		}
		if after := state(t, dst); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Error("the dry run wrote keys")
		}
	})
	t.Run("mirror", func(t *testing.T) {
		src, dst := prepare(t)
		res, err := transfer.Copy(t.Context(), src, dst, transfer.Options{Existing: transfer.Mirror})
		if err != nil || res.Deleted != 2 || res.Equal != 1 {
			t.Errorf("mirror: %+v, %v", res, err)
		}
		same(t, src, dst)
		st, _ := dst.Status(t.Context())
		res, err = transfer.Copy(t.Context(), src, dst, transfer.Options{Existing: transfer.Mirror})
		if err != nil || res.Put != 0 || res.Deleted != 0 || res.Target != st.Revision {
			t.Errorf("mirror to an equal target: %+v, %v", res, err)
		}
	})
	t.Run("merge", func(t *testing.T) {
		src, dst := prepare(t)
		opts := transfer.Options{Existing: transfer.Merge}
		res, err := transfer.Copy(t.Context(), src, dst, opts)
		if err != nil || res.Deleted != 0 {
			t.Errorf("merge: %+v, %v", res, err)
		}
		if got := state(t, dst); got["a/own"] == "" || len(got) != len(state(t, src))+2 {
			t.Error("merge has removed keys")
		}
		verified(t, src, res.Source, dst, opts)
	})
	t.Run("span", func(t *testing.T) {
		src, dst := prepare(t)
		opts := transfer.Options{Existing: transfer.Mirror, Span: kv.Prefix([]byte("key/"))}
		res, err := transfer.Copy(t.Context(), src, dst, opts)
		if err != nil {
			t.Fatal(err)
		}
		verified(t, src, res.Source, dst, opts)
		if got := state(t, dst); got["a/own"] == "" || got["large"] != "" {
			t.Error("keys outside the span were changed")
		}
	})
}

// compacting occasionally compacts the revision that is being read.
type compacting struct {
	*store
	t    *testing.T
	left int
}

func (c *compacting) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	if req.Revision > 0 && len(req.Start) > 1 && c.left > 0 {
		c.left--
		c.del(c.t, "key/00001")
		rev := c.put(c.t, "key/00001", fmt.Sprint(c.left), 0)
		if _, err := c.Compact(ctx, rev, false); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.store.Range(ctx, req)
}

func TestCopySurvivesCompactions(t *testing.T) {
	t.Parallel()
	src, dst := open(t), open(t)
	fill(t, src, 400)
	res, err := transfer.Copy(t.Context(), &compacting{src, t, 3}, dst, transfer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, src, dst)
	verified(t, src, res.Source, dst, transfer.Options{})
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"keyspace", "file beside a server"} {
		t.Run(from, func(t *testing.T) {
			src, dst := open(t), open(t)
			fill(t, src, 200)
			var source interface {
				transfer.SourceReader
				Status(context.Context) (*kv.Status, error)
			} = src
			if from != "keyspace" {
				ro, err := sqlite.OpenReadOnly(src.path)
				if err != nil {
					t.Fatal(err)
				}
				defer ro.Close()
				table, err := ro.Open(t.Context(), "test")
				if err != nil {
					t.Fatal(err)
				}
				source = inspect.NewReader(table, ro, clock.RealClock{})
			}
			res, err := transfer.Copy(t.Context(), source, dst, transfer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			applied := make(chan kv.Revision, 1000)
			type end struct {
				rev kv.Revision
				err error
			}
			ended := make(chan end, 1)
			go func() {
				rev, err := transfer.Follow(ctx, source, dst, res.Source, transfer.Options{},
					transfer.FollowHooks{Applied: func(rev kv.Revision, _ int) { applied <- rev }})
				ended <- end{rev, err}
			}()
			var last kv.Revision
			for i := range 300 {
				last = src.put(t, fmt.Sprintf("key/%05d", i*3%250), fmt.Sprint("new ", i), int64(i%2)*101)
				if i%5 == 0 {
					src.del(t, fmt.Sprintf("key/%05d", i))
				}
			}
			// More changes at once than fit into a transaction.
			if _, err := src.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Prefix([]byte("key/000"))}}}}); err != nil {
				t.Fatal(err)
			}
			last = src.put(t, "the end", "", 0)
			for rev := range applied {
				if rev >= last {
					break
				}
			}
			stop()
			if got := <-ended; got.err != nil || got.rev < last {
				t.Fatalf("follow ended at %d, want %d: %v", got.rev, last, got.err)
			}
			same(t, src, dst)
		})
	}
}

func TestFollowRestartsAfterCompaction(t *testing.T) {
	src, dst := open(t), open(t)
	fill(t, src, 50)
	res, err := transfer.Copy(t.Context(), src, dst, transfer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	src.del(t, "empty")
	last := src.put(t, "new", "1", 0)
	if _, err := src.Compact(t.Context(), last, true); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	restarted := false
	rev, err := transfer.Follow(ctx, src, dst, res.Source, transfer.Options{},
		transfer.FollowHooks{Restarted: func(*transfer.Result) { restarted = true; stop() }})
	if err != nil || !restarted || rev != last {
		t.Fatalf("followed to %d (%v), restarted %v", rev, err, restarted)
	}
	same(t, src, dst)
}

func backup(t *testing.T, src *store, plain bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	err := transfer.CreateFile(path, false, func(w io.Writer) error {
		_, err := transfer.Backup(t.Context(), w, []transfer.Part{{Name: "one", Source: src}, {Name: "two", Source: open(t)}},
			transfer.BackupOptions{Plain: plain, Created: time.Unix(1, 0)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	src := open(t)
	fill(t, src, 600)
	st, _ := src.Status(t.Context())
	for _, plain := range []bool{true, false} {
		path := backup(t, src, plain)
		a, err := transfer.OpenArchive(t.Context(), path, transfer.ProgressHooks{})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if len(a.Sections) != 2 || !a.Created.Equal(time.Unix(1, 0)) {
			t.Fatalf("read %+v", a)
		}
		s, err := a.Section("one")
		if err != nil || s.Revision != st.Revision || len(s.Leases) != 3 {
			t.Fatalf("section %+v, %v", s, err)
		}
		dst := openWith(t, s.Revision+1000, mvcc.Options{})
		res, err := transfer.Restore(t.Context(), a, s, dst, transfer.Options{})
		if err != nil || res.Put != s.Keys {
			t.Fatalf("restored %+v, %v", res, err)
		}
		same(t, src, dst)
		if got, err := transfer.VerifyRestore(t.Context(), a, s, dst, transfer.Options{}); err != nil || got.Different != 0 || got.Equal != s.Keys {
			t.Errorf("verify: %+v, %v", got, err)
		}
		if res.Target <= st.Revision+1000 {
			t.Errorf("the restored keyspace is at revision %d, the backup was at %d", res.Target, st.Revision)
		}
		w, err := dst.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: st.Revision + 1})
		if err != nil {
			t.Fatal(err)
		}
		if first := <-w.Responses(); !errors.Is(first.Err, kv.ErrCompacted) {
			t.Errorf("a client that resumes its watch gets %+v, want a compaction error", first)
		}
		if err := dst.db.Check(t.Context()); err != nil {
			t.Errorf("check: %v", err)
		}
		err = inspect.Check(t.Context(), dst.table, nil, func(f string) { t.Errorf("finding: %s", f) })
		if err != nil {
			t.Error(err)
		}
		if _, err := a.Section("three"); err == nil || !strings.Contains(err.Error(), `"two"`) {
			t.Errorf("a missing section: %v", err)
		}
	}
}

// TestDamagedBackup checks that any damage to a file is detected before anything is
// restored.
func TestDamagedBackup(t *testing.T) {
	t.Parallel()
	src := open(t)
	for i := range 20 {
		src.put(t, fmt.Sprint("key", i), strings.Repeat("v", i), 0)
	}
	for _, plain := range []bool{true, false} {
		sound, err := os.ReadFile(backup(t, src, plain))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "damaged")
		try := func(what string, content []byte) {
			t.Helper()
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if a, err := transfer.OpenArchive(t.Context(), path, transfer.ProgressHooks{}); err == nil {
				t.Errorf("%s was not detected", what)
				a.Close()
			}
		}
		for i := range sound {
			broken := bytes.Clone(sound)
			broken[i] ^= 0x10
			try(fmt.Sprintf("byte %d of %d changed", i, len(sound)), broken)
			if i%5 == 0 {
				try(fmt.Sprintf("truncated at byte %d", i), sound[:i])
			}
		}
		try("appended byte", append(bytes.Clone(sound), 0))
	}
}

func TestCreateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	fails := errors.New("it fails")
	if err := transfer.CreateFile(path, false, func(w io.Writer) error { io.WriteString(w, "part"); return fails }); !errors.Is(err, fails) {
		t.Errorf("create: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("a temporary file is left: %v", left)
	}
	write := func(w io.Writer) error { _, err := io.WriteString(w, "all"); return err }
	if err := transfer.CreateFile(path, false, write); err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(path); fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", fi.Mode())
	}
	if err := transfer.CreateFile(path, false, write); err == nil || !strings.Contains(err.Error(), "--overwrite") {
		t.Errorf("create an existing file: %v", err)
	}
	if err := transfer.CreateFile(path, true, write); err != nil {
		t.Error(err)
	}
}
