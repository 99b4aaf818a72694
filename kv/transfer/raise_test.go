package transfer_test

import (
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/transfer"
)

func TestRaise(t *testing.T) {
	for _, to := range []kv.Revision{1, 2, 3, 1_000_000_000} {
		s := openWith(t, to, mvcc.Options{})
		if rev := s.put(t, "a", "1", 0); rev != to+1 {
			t.Errorf("raised to %d, the first change made %d", to, rev)
		}
		if err := s.db.Check(t.Context()); err != nil {
			t.Errorf("raised to %d: %v", to, err)
		}
		if err := inspect.Check(t.Context(), s.table, nil, func(f string) { t.Errorf("raised to %d: %s", to, f) }); err != nil {
			t.Error(err)
		}
		if err := transfer.Raise(t.Context(), s.table, to+100); !errors.Is(err, kv.ErrInvalidRequest) {
			t.Errorf("raise a keyspace with keys: %v", err)
		}
	}
}

func TestRecover(t *testing.T) {
	s := open(t)
	s.put(t, "a", "1", 0)
	s.put(t, "b", "2", 0)
	for _, bump := range []kv.Revision{1, 2, 1_000_000_000} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		before, err := s.table.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		to, err := transfer.Recover(t.Context(), s.table, bump)
		if err != nil || to != before.Revision+bump {
			t.Fatalf("recovered from %d by %d: at %d, %v", before.Revision, bump, to, err)
		}
		if err := s.db.Check(t.Context()); err != nil {
			t.Errorf("recovered by %d: %v", bump, err)
		}
		if err := inspect.Check(t.Context(), s.table, nil, func(f string) { t.Errorf("recovered by %d: %s", bump, f) }); err != nil {
			t.Error(err)
		}
		s.start(t, mvcc.Options{})
		res, err := s.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
		if err != nil || len(res.KVs) != 2 || res.Revision != to {
			t.Errorf("after a recovery by %d the keyspace has %v, %v", bump, res, err)
		}
		w, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: before.Revision})
		if err != nil {
			t.Fatal(err)
		}
		if r := <-w.Responses(); !errors.Is(r.Err, kv.ErrCompacted) || r.CompactRevision != to {
			t.Errorf("after a recovery by %d, an older watch gets %+v", bump, r)
		}
	}
}
