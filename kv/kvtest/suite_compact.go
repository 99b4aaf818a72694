package kvtest

import (
	"github.com/atoll-dev/atoll/kv"
)

func compactTests() []test {
	return []test{
		{"history is discarded, the present is not", testCompact},
		{"invalid revisions", testCompactErrors},
		{"watches", testCompactWatches},
		{"all but the present", testCompactHead},
	}
}

func (e *env) compact(rev kv.Revision, physical bool) {
	e.Helper()
	now, err := e.ks.Compact(e.ctx, rev, physical)
	e.ok("compact", err)
	e.equal("revision after compaction", now, e.head())
}

func testCompact(e *env) {
	for _, physical := range []bool{true, false} {
		r1 := e.put("a", "1")
		e.put("gone", "1")
		e.put("a", "2")
		e.delete("gone")
		at := e.put("b", "1")
		after := e.put("a", "3")
		want := e.read(kv.RangeRequest{Span: e.all(), Revision: at})
		e.compact(at, physical)
		for _, rev := range []kv.Revision{1, r1, at - 1} {
			_, err := e.ks.Range(e.ctx, kv.RangeRequest{Span: e.all(), Revision: rev})
			e.fails("range below the compaction", err, kv.ErrCompacted)
			_, err = e.ks.Range(e.ctx, kv.RangeRequest{Span: e.span("a", ""), Revision: rev})
			e.fails("read of one key below the compaction", err, kv.ErrCompacted)
			_, err = e.ks.Txn(e.ctx, kv.TxnRequest{Then: []kv.Op{{Range: &kv.RangeRequest{Span: e.all(), Revision: rev}}}})
			e.fails("range below the compaction in a transaction", err, kv.ErrCompacted)
		}
		e.equal("at the compaction", e.read(kv.RangeRequest{Span: e.all(), Revision: at}), want)
		e.equalNames("now", e.read(kv.RangeRequest{Span: e.all()}).KVs, "a", "b")
		got := e.get("a")
		e.equal("the version of a continues", []any{string(got.Value), got.ModRevision}, []any{"3", after})
		st, err := e.ks.Status(e.ctx)
		e.ok("status", err)
		e.equal("status", []int64{st.Revision, st.Compacted}, []int64{after, at})
		e.do(kv.Op{Delete: &kv.DeleteOp{Span: e.all()}})
	}
}

func testCompactErrors(e *env) {
	e.put("a", "1")
	at := e.put("a", "2")
	now := e.put("a", "3")
	e.compact(at, false)
	for _, tc := range []struct {
		what string
		rev  kv.Revision
		want error
	}{
		{"the same revision again", at, kv.ErrCompacted},
		{"less", at - 1, kv.ErrCompacted},
		{"revision 0", 0, kv.ErrCompacted},
		{"a future revision", now + 1, kv.ErrFutureRevision},
	} {
		_, err := e.ks.Compact(e.ctx, tc.rev, false)
		e.fails(tc.what, err, tc.want)
	}
}

func testCompactWatches(e *env) {
	e.put("a", "1")
	live := e.watch(kv.WatchRequest{Span: e.all(), PrevKV: true})
	e.put("a", "2")
	at := e.put("a", "3")
	e.equal("before the compaction", len(e.eventsOf(live)), 2)
	e.compact(at, true)
	e.put("a", "4")
	e.equal("a running watch continues", describeEvents(e, e.eventsOf(live)), []string{"put a=2", "put a=3", "put a=4"})

	end := e.endOf(e.watch(kv.WatchRequest{Span: e.all(), StartRevision: at - 1}))
	e.fails("a watch from below", end.Err, kv.ErrCompacted)
	e.equal("its compaction revision", end.CompactRevision, at)
	e.equal("a watch from the compaction on", describeEvents(e, e.eventsOf(e.watch(kv.WatchRequest{Span: e.all(), StartRevision: at}))),
		[]string{"put a=3", "put a=4"})
}

func testCompactHead(e *env) {
	e.put("a", "1")
	e.put("b", "1")
	e.delete("b")
	now := e.head()
	e.compact(now, true)
	e.equalNames("the present", e.read(kv.RangeRequest{Span: e.all(), Revision: now}).KVs, "a")
	w := e.watch(kv.WatchRequest{Span: e.all(), StartRevision: now + 1})
	e.put("a", "2")
	e.equal("events", describeEvents(e, e.eventsOf(w)), []string{"put a=2"})
	e.equal("version", e.get("a").Version, int64(2))
}
