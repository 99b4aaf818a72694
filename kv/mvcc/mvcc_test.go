package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// store is a keyspace on a new database that is closed with the test.
type store struct {
	*mvcc.Keyspace
	t  testing.TB
	db *sqlite.DB
}

func openStore(t testing.TB, opts mvcc.Options, dbOpts ...sqlite.Option) *store {
	return openPath(t, filepath.Join(t.TempDir(), "kv.db"), opts, dbOpts...)
}

func openPath(t testing.TB, path string, opts mvcc.Options, dbOpts ...sqlite.Option) *store {
	t.Helper()
	db, err := sqlite.Open(path, dbOpts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	k, err := mvcc.Open(context.Background(), table, db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return &store{k, t, db}
}

func span(start, end string) kv.Span { return kv.Span{Start: []byte(start), End: []byte(end)} }

func put(key, value string) kv.Op {
	return kv.Op{Put: &kv.PutOp{Key: []byte(key), Value: []byte(value)}}
}

func del(start, end string) kv.Op { return kv.Op{Delete: &kv.DeleteOp{Span: span(start, end)}} }

func get(start, end string) kv.Op { return kv.Op{Range: &kv.RangeRequest{Span: span(start, end)}} }

func ifMod(key string, rev kv.Revision) kv.Compare {
	return kv.Compare{Span: span(key, ""), Target: kv.CompareMod, Int: rev}
}

func (s *store) txn(req kv.TxnRequest) *kv.TxnResult {
	s.t.Helper()
	res, err := s.Txn(context.Background(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

func (s *store) put(key, value string) kv.Revision {
	s.t.Helper()
	return s.txn(kv.TxnRequest{Then: []kv.Op{put(key, value)}}).Revision
}

func (s *store) del(start, end string) kv.Revision {
	s.t.Helper()
	return s.txn(kv.TxnRequest{Then: []kv.Op{del(start, end)}}).Revision
}

func (s *store) list(start, end string, rev kv.Revision) string {
	s.t.Helper()
	res, err := s.Range(context.Background(), kv.RangeRequest{Span: span(start, end), Revision: rev})
	if err != nil {
		s.t.Fatal(err)
	}
	return show(res)
}

// show formats a result as "key=value@mod(create,version)…".
func show(res *kv.RangeResult) string {
	var out string
	for _, e := range res.KVs {
		out += fmt.Sprintf("%s=%s@%d(%d,%d) ", e.Key, e.Value, e.ModRevision, e.CreateRevision, e.Version)
	}
	out += fmt.Sprintf("n=%d", res.Count)
	if res.More {
		out += "+"
	}
	return out
}

func expect(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func expectErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func TestHistory(t *testing.T) {
	s := openStore(t, mvcc.Options{})
	s.put("a", "1") // 2
	s.put("b", "1") // 3
	s.put("a", "2") // 4
	s.del("b", "")  // 5
	s.put("b", "3") // 6
	s.put("c", "1") // 7
	all := func(rev kv.Revision) string { return s.list("a", "z", rev) }
	check := func() {
		t.Helper()
		expect(t, "now", all(0), "a=2@4(2,2) b=3@6(6,1) c=1@7(7,1) n=3")
		expect(t, "at 6", all(6), "a=2@4(2,2) b=3@6(6,1) n=2")
		expect(t, "at 5", all(5), "a=2@4(2,2) n=1")
		expect(t, "at 4", all(4), "a=2@4(2,2) b=1@3(3,1) n=2")
	}
	check()
	expect(t, "at 3", all(3), "a=1@2(2,1) b=1@3(3,1) n=2")
	expect(t, "at 1", all(1), "n=0")
	if _, err := s.Compact(t.Context(), 4, true); err != nil {
		t.Fatal(err)
	}
	check()
	_, err := s.Range(t.Context(), kv.RangeRequest{Span: span("a", ""), Revision: 3})
	expectErr(t, err, kv.ErrCompacted)
	_, err = s.Range(t.Context(), kv.RangeRequest{Span: span("a", ""), Revision: 8})
	expectErr(t, err, kv.ErrFutureRevision)
	_, err = s.Compact(t.Context(), 4, true)
	expectErr(t, err, kv.ErrCompacted)
	_, err = s.Compact(t.Context(), 8, true)
	expectErr(t, err, kv.ErrFutureRevision)
	if _, err := s.Compact(t.Context(), 7, true); err != nil {
		t.Fatal(err)
	}
	expect(t, "now", all(0), "a=2@4(2,2) b=3@6(6,1) c=1@7(7,1) n=3")
	if err := s.db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTxn(t *testing.T) {
	s := openStore(t, mvcc.Options{})
	create := kv.TxnRequest{If: []kv.Compare{ifMod("k", 0)}, Then: []kv.Op{put("k", "v")}, Else: []kv.Op{get("k", "")}}
	if res := s.txn(create); !res.Succeeded || res.Revision != 2 {
		t.Errorf("create: %+v", res)
	}
	res := s.txn(create)
	if res.Succeeded || res.Revision != 2 {
		t.Errorf("create again: %+v", res)
	}
	expect(t, "else", show(res.Results[0].Range), "k=v@2(2,1) n=1")

	// Ranges see the transaction's earlier changes; compares do not.
	res = s.txn(kv.TxnRequest{Then: []kv.Op{
		put("m", "1"),
		get("a", "z"),
		{Txn: &kv.TxnRequest{If: []kv.Compare{ifMod("m", 0)}, Then: []kv.Op{put("n", "1"), del("k", "")}}},
		get("a", "z"),
		{Range: &kv.RangeRequest{Span: span("a", "z"), Revision: 2}},
	}})
	expect(t, "own put", show(res.Results[1].Range), "k=v@2(2,1) m=1@3(3,1) n=2")
	expect(t, "own delete", show(res.Results[3].Range), "m=1@3(3,1) n=1@3(3,1) n=2")
	expect(t, "before", show(res.Results[4].Range), "k=v@2(2,1) n=1")

	for name, tc := range map[string]struct {
		req  kv.TxnRequest
		want error
	}{
		"put twice":          {kv.TxnRequest{Then: []kv.Op{put("x", ""), put("x", "")}}, kv.ErrDuplicateKey},
		"put and delete":     {kv.TxnRequest{Else: []kv.Op{put("x", ""), del("a", "z")}}, kv.ErrDuplicateKey},
		"nested twice":       {kv.TxnRequest{Then: []kv.Op{put("x", ""), {Txn: &kv.TxnRequest{Then: []kv.Op{put("x", "")}}}}}, kv.ErrDuplicateKey},
		"empty key":          {kv.TxnRequest{Then: []kv.Op{put("", "")}}, kv.ErrEmptyKey},
		"unknown lease":      {kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("x"), Lease: 7}}}}, kv.ErrLeaseNotFound},
		"keep missing value": {kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("x"), IgnoreValue: true}}}}, kv.ErrKeyNotFound},
		"future":             {kv.TxnRequest{Then: []kv.Op{put("x", ""), {Range: &kv.RangeRequest{Span: span("x", ""), Revision: 99}}}}, kv.ErrFutureRevision},
		"own future":         {kv.TxnRequest{Then: []kv.Op{put("x", ""), {Range: &kv.RangeRequest{Span: span("x", ""), Revision: 4}}}}, kv.ErrFutureRevision},
		"empty op":           {kv.TxnRequest{Then: []kv.Op{{}}}, kv.ErrKeyNotFound},
		"too many":           {kv.TxnRequest{Then: make([]kv.Op, 129)}, kv.ErrTooManyOps},
		"too large":          {kv.TxnRequest{Then: []kv.Op{put("x", string(make([]byte, 2<<20)))}}, kv.ErrRequestTooLarge},
	} {
		_, err := s.Txn(t.Context(), tc.req)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	expect(t, "after refusals", s.list("a", "z", 0), "m=1@3(3,1) n=1@3(3,1) n=2")
	// Either branch may put the same key.
	s.txn(kv.TxnRequest{Then: []kv.Op{{Txn: &kv.TxnRequest{Then: []kv.Op{put("x", "")}, Else: []kv.Op{put("x", "")}}}}})
}

func TestRangeOptions(t *testing.T) {
	s := openStore(t, mvcc.Options{})
	for _, e := range []string{"a", "b", "c", "d"} {
		s.put(e, "v"+e)
	}
	s.put("b", "zz") // 6
	for name, tc := range map[string]struct {
		req  kv.RangeRequest
		want string
	}{
		"limit":           {kv.RangeRequest{Limit: 2}, "a=va@2(2,1) b=zz@6(3,2) n=4+"},
		"limit at 5":      {kv.RangeRequest{Limit: 2, Revision: 5}, "a=va@2(2,1) b=vb@3(3,1) n=4+"},
		"limit is all":    {kv.RangeRequest{Limit: 4}, "a=va@2(2,1) b=zz@6(3,2) c=vc@4(4,1) d=vd@5(5,1) n=4"},
		"count":           {kv.RangeRequest{CountOnly: true}, "n=4"},
		"keys":            {kv.RangeRequest{KeysOnly: true, Limit: 1}, "a=@2(2,1) n=4+"},
		"descending":      {kv.RangeRequest{SortOrder: kv.SortDescend, Limit: 1}, "d=vd@5(5,1) n=4+"},
		"by mod":          {kv.RangeRequest{SortTarget: kv.SortByMod, SortOrder: kv.SortDescend, Limit: 2}, "b=zz@6(3,2) d=vd@5(5,1) n=4+"},
		"by value, keys":  {kv.RangeRequest{SortTarget: kv.SortByValue, SortOrder: kv.SortDescend, Limit: 1, KeysOnly: true}, "b=@6(3,2) n=4+"},
		"created before":  {kv.RangeRequest{MaxCreateRevision: 3}, "a=va@2(2,1) b=zz@6(3,2) n=4"},
		"changed between": {kv.RangeRequest{MinModRevision: 3, MaxModRevision: 5}, "c=vc@4(4,1) d=vd@5(5,1) n=4"},
	} {
		tc.req.Span = span("a", "\x00")
		res, err := s.Range(t.Context(), tc.req)
		if err != nil {
			t.Fatal(name, err)
		}
		expect(t, name, show(res), tc.want)
	}
}

// next returns the next response of a watch.
func next(t testing.TB, w kv.Watch) kv.WatchResponse {
	t.Helper()
	select {
	case r, ok := <-w.Responses():
		if !ok {
			t.Fatal("watch ended")
		}
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("no response")
	}
	panic("unreachable")
}

func events(t testing.TB, w kv.Watch, n int) (out string) {
	t.Helper()
	for n > 0 {
		r := next(t, w)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		n -= len(r.Events)
		for _, e := range r.Events {
			op := "put"
			if e.Type == kv.EventDelete {
				op = "del"
			}
			out += fmt.Sprintf("%s %s=%s@%d", op, e.KV.Key, e.KV.Value, e.KV.ModRevision)
			if e.Prev != nil {
				out += "<" + string(e.Prev.Value)
			}
			out += " "
		}
	}
	return out
}

func TestWatch(t *testing.T) {
	s := openStore(t, mvcc.Options{})
	watch := func(req kv.WatchRequest) kv.Watch {
		t.Helper()
		w, err := s.Watch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	now := watch(kv.WatchRequest{Span: span("a", "c"), PrevKV: true})
	future := watch(kv.WatchRequest{Span: span("a", "c"), StartRevision: 5})
	s.put("a", "1") // 2
	s.put("a", "2") // 3
	s.del("a", "")  // 4
	s.put("b", "1") // 5
	s.put("c", "1") // 6
	const all = "put a=1@2 put a=2@3<1 del a=@4<2 put b=1@5 "
	expect(t, "now", events(t, now, 4), all)
	expect(t, "future", events(t, future, 1), "put b=1@5 ")
	past := watch(kv.WatchRequest{Span: span("a", "c"), StartRevision: 2, PrevKV: true})
	expect(t, "past", events(t, past, 4), all)
	one := watch(kv.WatchRequest{Span: span("a", ""), StartRevision: 1, NoDelete: true})
	expect(t, "one", events(t, one, 2), "put a=1@2 put a=2@3 ")

	past.RequestProgress()
	if r := next(t, past); !r.Progress || r.Revision != 6 {
		t.Errorf("progress: %+v", r)
	}
	if _, err := s.Compact(t.Context(), 4, true); err != nil {
		t.Fatal(err)
	}
	lost := watch(kv.WatchRequest{Span: span("a", "c"), StartRevision: 3})
	if r := next(t, lost); !errors.Is(r.Err, kv.ErrCompacted) || r.CompactRevision != 4 {
		t.Errorf("compacted: %+v", r)
	}
	if _, ok := <-lost.Responses(); ok {
		t.Error("watch continues after an error")
	}
	kept := watch(kv.WatchRequest{Span: span("a", "c"), StartRevision: 4, PrevKV: true})
	expect(t, "kept", events(t, kept, 2), "del a=@4 put b=1@5 ")
}

func TestLeases(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	s := openStore(t, mvcc.Options{Clock: clock})
	l, err := s.Grant(t.Context(), 0, time.Second)
	if err != nil || l.Granted != 2*time.Second || l.ID <= 0 {
		t.Fatal(l, err)
	}
	other, err := s.Grant(t.Context(), 7, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Grant(t.Context(), 7, time.Hour)
	expectErr(t, err, kv.ErrLeaseExists)
	for i, id := range []kv.LeaseID{l.ID, l.ID, l.ID, other.ID} {
		s.txn(kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: fmt.Append(nil, "k", i), Lease: id}}}})
	}
	s.put("k0", "no lease any more") // 6
	if ttl, err := s.TimeToLive(t.Context(), l.ID, true); err != nil || fmt.Sprintf("%s", ttl.Keys) != "[k1 k2]" {
		t.Error(ttl, err)
	}
	w, err := s.Watch(t.Context(), kv.WatchRequest{Span: span("k", "l")})
	if err != nil {
		t.Fatal(err)
	}
	clock.Step(time.Second)
	if _, err := s.KeepAlive(t.Context(), l.ID); err != nil {
		t.Error(err)
	}
	clock.Step(1900 * time.Millisecond)
	if _, err := s.TimeToLive(t.Context(), l.ID, false); err != nil {
		t.Error("expired despite keep-alive:", err)
	}
	clock.Step(200 * time.Millisecond)
	expect(t, "expiry", events(t, w, 2), "del k1=@7 del k2=@7 ")
	_, err = s.KeepAlive(t.Context(), l.ID)
	expectErr(t, err, kv.ErrLeaseNotFound)
	if rev, err := s.Revoke(t.Context(), 7); rev != 8 || err != nil {
		t.Error(rev, err)
	}
	expect(t, "left", s.list("k", "l", 0), "k0=no lease any more@6(2,2) n=1")
	if ids, _, _ := s.LeaseList(t.Context()); len(ids) != 0 {
		t.Error(ids)
	}
}
