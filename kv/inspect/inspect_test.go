package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

type store struct {
	*mvcc.Keyspace
	table  kv.Table
	reader *inspect.Reader
}

func open(t *testing.T) *store {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := &store{}
	if s.table, err = db.Open(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if s.Keyspace, err = mvcc.Open(t.Context(), s.table, db, mvcc.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.reader = inspect.NewReader(s.table, db, clock.RealClock{})
	return s
}

func (s *store) do(t *testing.T, ops ...kv.Op) kv.Revision {
	t.Helper()
	res, err := s.Txn(t.Context(), kv.TxnRequest{Then: ops})
	if err != nil {
		t.Fatal(err)
	}
	return res.Revision
}

func put(key, value string, lease kv.LeaseID) kv.Op {
	return kv.Op{Put: &kv.PutOp{Key: []byte(key), Value: []byte(value), Lease: lease}}
}

func del(key string) kv.Op {
	return kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte(key)}}}
}

// work creates a random history of a few keys.
func (s *store) work(t *testing.T, r *rand.Rand, n int) (rev kv.Revision) {
	t.Helper()
	for range n {
		key := fmt.Sprint("key", r.IntN(10))
		switch r.IntN(4) {
		case 0:
			rev = s.do(t, del(key))
		case 1:
			rev = s.do(t, put(key, "two", 0), put("other", "two", 0))
		default:
			rev = s.do(t, put(key, fmt.Sprint(r.Uint64()), int64(r.IntN(2))*7))
		}
	}
	return rev
}

func check(t *testing.T, table kv.Table) (found []string) {
	t.Helper()
	if err := inspect.Check(t.Context(), table, nil, func(f string) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestReclaimable checks that a compaction frees exactly the announced number of rows.
func TestReclaimable(t *testing.T) {
	s := open(t)
	if _, err := s.Grant(t.Context(), 7, time.Hour); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	compacted := kv.Revision(0)
	for range 30 {
		rev := s.work(t, r, 1+r.IntN(20))
		at := rev - int64(r.IntN(3))
		if at <= compacted {
			continue
		}
		before, err := s.reader.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, src := range []inspect.HistorySource{s.reader, s} {
			g, err := inspect.Reclaimable(t.Context(), src, compacted, at)
			if err != nil {
				t.Fatal(err)
			}
			if src == inspect.HistorySource(s.reader) {
				continue
			}
			if _, err := s.Compact(t.Context(), at, true); err != nil {
				t.Fatal(err)
			}
			after, err := s.reader.Inspect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if freed := before.History - after.History; freed != g.Changes {
				t.Errorf("compacted from %d to %d of %d: %d rows freed, %d expected", compacted, at, rev, freed, g.Changes)
			}
		}
		compacted = at
		if found := check(t, s.table); len(found) > 0 {
			t.Fatalf("findings in an undamaged table: %q", found)
		}
	}
}

// damagedTable is a table that has lost or changed some data.
type damagedTable struct {
	kv.Table
	state   func(*kv.KeyValue) bool // changes or drops a key of the state
	changes func(*kv.Change) bool   // changes or drops a change of the log
	leases  func([]kv.LeaseRecord) []kv.LeaseRecord
}

func (l damagedTable) Range(ctx context.Context, req kv.RangeRequest, count bool) (*kv.RangeResult, kv.Head, error) {
	res, head, err := l.Table.Range(ctx, req, count)
	if err != nil || l.state == nil || req.Revision > 0 && req.Revision <= head.Compacted {
		return res, head, err
	}
	kept := res.KVs[:0]
	for _, e := range res.KVs {
		if l.state(&e) {
			kept = append(kept, e)
		}
	}
	res.KVs = kept
	return res, head, nil
}

func (l damagedTable) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) ([]kv.Change, kv.Head, error) {
	all, head, err := l.Table.Changes(ctx, after, upTo, limit, withPrev)
	if l.changes == nil {
		return all, head, err
	}
	kept := all[:0]
	for _, ch := range all {
		if l.changes(&ch) {
			kept = append(kept, ch)
		}
	}
	return kept, head, err
}

func (l damagedTable) Leases(ctx context.Context) ([]kv.LeaseRecord, error) {
	all, err := l.Table.Leases(ctx)
	if err == nil && l.leases != nil {
		all = l.leases(all)
	}
	return all, err
}

func TestCheckFinds(t *testing.T) {
	s := open(t)
	if _, err := s.Grant(t.Context(), 7, time.Hour); err != nil {
		t.Fatal(err)
	}
	old := s.do(t, put("old", "1", 0), put("leased", "1", 7))
	s.do(t, put("a", "1", 0))
	if _, err := s.Compact(t.Context(), old, true); err != nil {
		t.Fatal(err)
	}
	s.do(t, put("a", "2", 0))
	s.do(t, put("b", "1", 0))
	s.do(t, del("b"))
	rev := s.do(t, put("c", "3", 0))

	key := func(name string) func(e *kv.KeyValue) bool {
		return func(e *kv.KeyValue) bool { return string(e.Key) == name }
	}
	for what, c := range map[string]struct {
		table damagedTable
		want  string
	}{
		"a key lost": {damagedTable{state: func(e *kv.KeyValue) bool { return !key("old")(e) }}, `key "old" is lost`},
		"a key changed": {damagedTable{state: func(e *kv.KeyValue) bool {
			if key("a")(e) {
				e.Value = []byte("x")
			}
			return true
		}}, "has a different value"},
		"a version changed": {damagedTable{state: func(e *kv.KeyValue) bool {
			if key("a")(e) {
				e.Version++
			}
			return true
		}}, "in the log it is at"},
		"a key come back":        {damagedTable{changes: func(ch *kv.Change) bool { return !key("c")(&ch.KV) }}, "the log ends at revision"},
		"a change lost":          {damagedTable{changes: func(ch *kv.Change) bool { return !(key("a")(&ch.KV) && ch.KV.Version == 2) }}, "the log has a gap from revision"},
		"a predecessor lost":     {damagedTable{changes: func(ch *kv.Change) bool { ch.PrevRevision = 0; return true }}, "claims to replace revision 0"},
		"a wrong version":        {damagedTable{changes: func(ch *kv.Change) bool { ch.KV.Version++; return true }}, "it should be version"},
		"a lease lost":           {damagedTable{leases: func([]kv.LeaseRecord) []kv.LeaseRecord { return nil }}, "which does not exist"},
		"a key that is not ours": {damagedTable{changes: func(ch *kv.Change) bool { ch.Deleted = ch.Deleted || ch.KV.ModRevision == rev; return true }}, "but not in the log"},
	} {
		c.table.Table = s.table
		if found := strings.Join(check(t, c.table), "\n"); !strings.Contains(found, c.want) {
			t.Errorf("%s: found %q, want %q", what, found, c.want)
		}
	}
	if found := check(t, s.table); len(found) > 0 {
		t.Errorf("findings in an undamaged table: %q", found)
	}
}

// TestWatchByReading checks that a watch that reads the log delivers the same events as the
// engine's.
func TestWatchByReading(t *testing.T) {
	s := open(t)
	if _, err := s.Grant(t.Context(), 7, time.Hour); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	s.work(t, r, 100)
	for _, req := range []kv.WatchRequest{
		{Span: kv.Prefix(nil), PrevKV: true},
		{Span: kv.Prefix([]byte("key1"))},
		{Span: kv.Span{Start: []byte("other")}, NoPut: true},
		{Span: kv.Span{Start: []byte("key5"), End: []byte{0}}, NoDelete: true},
	} {
		for after := kv.Revision(1); after < 100; after += 33 {
			rev := s.work(t, r, 10)
			collect := func(src inspect.HistorySource) (out []string) {
				err := inspect.History(t.Context(), src, req, after, rev, func(e kv.Event) error {
					prev := "none"
					if e.Prev != nil {
						prev = fmt.Sprintf("%+v", *e.Prev)
					}
					out = append(out, fmt.Sprintf("%d %+v, previous %s", e.Type, e.KV, prev))
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			got, want := collect(s.reader), collect(s)
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%+v after %d: by reading\n%s\nfrom the engine\n%s", req, after, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	st, err := s.reader.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Compact(t.Context(), st.Revision, true); err != nil {
		t.Fatal(err)
	}
	err = inspect.History(t.Context(), s.reader, kv.WatchRequest{Span: kv.Prefix(nil)}, 1, st.Revision, func(kv.Event) error { return nil })
	if !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("compacted history: %v", err)
	}
}

func TestReader(t *testing.T) {
	s := open(t)
	if _, err := s.Grant(t.Context(), 7, time.Hour); err != nil {
		t.Fatal(err)
	}
	s.do(t, put("a", "1", 7))
	if l, err := s.reader.TimeToLive(t.Context(), 7, true); err != nil || l.Granted != time.Hour || len(l.Keys) != 1 {
		t.Errorf("lease: %+v, %v", l, err)
	}
	if _, err := s.reader.TimeToLive(t.Context(), 8, false); !errors.Is(err, kv.ErrLeaseNotFound) {
		t.Errorf("a missing lease: %v", err)
	}
	if ids, rev, err := s.reader.LeaseList(t.Context()); err != nil || len(ids) != 1 || rev != 2 {
		t.Errorf("leases: %v at %d, %v", ids, rev, err)
	}
	if _, err := s.reader.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), SortOrder: kv.SortDescend}); !errors.Is(err, kv.ErrInvalidRequest) {
		t.Errorf("sorted range: %v", err)
	}
	if _, err := s.reader.Range(t.Context(), kv.RangeRequest{}); !errors.Is(err, kv.ErrEmptyKey) {
		t.Errorf("range without a key: %v", err)
	}
	if got, err := s.reader.Inspect(t.Context()); err != nil || got.Keys != 1 || got.History != 0 {
		t.Errorf("inspected %+v, %v", got, err)
	}
}
