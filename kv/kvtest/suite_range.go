package kvtest

import (
	"bytes"
	"context"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

func rangeTests() []test {
	return []test{
		{"fields of a key", testFields},
		{"spans", testSpans},
		{"keys are ordered by their bytes", testByteOrder},
		{"limit", testLimit},
		{"count only and keys only", testReducedReads},
		{"old revisions", testOldRevisions},
		{"sort", testSort},
		{"bounds on revisions", testBounds},
		{"invalid reads", testRangeErrors},
		{"large values", testLargeValues},
		{"a canceled context", testCanceledRead},
	}
}

func testFields(e *env) {
	r1 := e.put("a", "1")
	r2 := e.put("a", "2")
	e.equal("after two puts", e.get("a"),
		&kv.KeyValue{Key: e.key("a"), Value: []byte("2"), CreateRevision: r1, ModRevision: r2, Version: 2})
	if r2 != r1+1 {
		e.Errorf("two changes made revisions %d and %d", r1, r2)
	}
	r3 := e.delete("a")
	e.equal("after deletion", e.get("a"), (*kv.KeyValue)(nil))
	r4 := e.put("a", "")
	if r4 != r3+1 || r3 != r2+1 {
		e.Errorf("four changes made revisions %d, %d, %d, %d", r1, r2, r3, r4)
	}
	e.equal("after it was recreated", e.get("a"), &kv.KeyValue{Key: e.key("a"), CreateRevision: r4, ModRevision: r4, Version: 1})
}

func testSpans(e *env) {
	for _, name := range []string{"a", "b", "b\x00", "ba", "c"} {
		e.put(name, name)
	}
	for _, tc := range []struct {
		from, to string
		want     []string
	}{
		{"b", "", []string{"b"}},
		{"x", "", nil},
		{"a", "c", []string{"a", "b", "b\x00", "ba"}},
		{"b", "b\x00", []string{"b"}},
		{"b", "bb", []string{"b", "b\x00", "ba"}},
		{"aa", "b", nil},
		{"b", "b", nil},
		{"c", "a", nil},
	} {
		res := e.read(kv.RangeRequest{Span: e.span(tc.from, tc.to)})
		e.equalNames(fmt.Sprintf("from %q to %q", tc.from, tc.to), res.KVs, tc.want...)
		e.equal(fmt.Sprintf("count from %q to %q", tc.from, tc.to), res.Count, int64(len(tc.want)))
	}
	e.equalNames("prefix", e.read(kv.RangeRequest{Span: kv.Prefix(e.key("b"))}).KVs, "b", "b\x00", "ba")
	// No upper bound: at least this test's keys.
	res := e.read(kv.RangeRequest{Span: kv.Span{Start: e.key("b"), End: []byte{0}}, Limit: 4})
	e.equalNames("to the end", res.KVs, "b", "b\x00", "ba", "c")
}

func testByteOrder(e *env) {
	want := []string{"\x00", "\x00\x00", "\x01", "A", "Z", "a", "z", "é", "\xff", "\xff\xff"}
	for i := range want {
		e.put(want[(i*7)%len(want)], "")
	}
	e.equalNames("all", e.read(kv.RangeRequest{Span: e.all()}).KVs, want...)
}

func testLimit(e *env) {
	for i := range 5 {
		e.put(fmt.Sprint(i), "")
	}
	for _, tc := range []struct {
		limit int64
		keys  int
		more  bool
	}{{0, 5, false}, {1, 1, true}, {4, 4, true}, {5, 5, false}, {6, 5, false}} {
		res := e.read(kv.RangeRequest{Span: e.all(), Limit: tc.limit})
		e.equal(fmt.Sprintf("limit %d: keys", tc.limit), len(res.KVs), tc.keys)
		e.equal(fmt.Sprintf("limit %d: more", tc.limit), res.More, tc.more)
		e.equal(fmt.Sprintf("limit %d: count", tc.limit), res.Count, int64(5))
	}
	// Like the API server reads long lists: all pages at one revision.
	at := e.head()
	e.delete("3")
	e.put("5", "")
	var names []string
	span := e.all()
	for {
		res := e.read(kv.RangeRequest{Span: span, Limit: 2, Revision: at})
		names = append(names, e.names(res.KVs)...)
		if !res.More {
			break
		}
		e.equal("count of the rest", res.Count, int64(5-len(names)+len(res.KVs)))
		span.Start = append(bytes.Clone(res.KVs[len(res.KVs)-1].Key), 0)
	}
	e.equal("pages", names, []string{"0", "1", "2", "3", "4"})
}

func testReducedReads(e *env) {
	e.put("a", "1")
	e.put("b", "2")
	res := e.read(kv.RangeRequest{Span: e.all(), CountOnly: true})
	e.equal("count only", res, &kv.RangeResult{Revision: res.Revision, Count: 2})
	res = e.read(kv.RangeRequest{Span: e.all(), KeysOnly: true})
	e.equalNames("keys only", res.KVs, "a", "b")
	for _, k := range res.KVs {
		if len(k.Value) > 0 || k.Version != 1 || k.ModRevision == 0 {
			e.Errorf("keys only gave %+v", k)
		}
	}
}

func testOldRevisions(e *env) {
	before := e.head()
	r1 := e.put("a", "1")
	r2 := e.put("b", "1")
	r3 := e.put("a", "2")
	r4 := e.delete("b")
	r5 := e.do(e.putOp("b", "2"), e.putOp("c", "1")).Revision
	for _, tc := range []struct {
		rev  kv.Revision
		want map[string]string
	}{
		{before, nil},
		{r1, map[string]string{"a": "1"}},
		{r2, map[string]string{"a": "1", "b": "1"}},
		{r3, map[string]string{"a": "2", "b": "1"}},
		{r4, map[string]string{"a": "2"}},
		{r5, map[string]string{"a": "2", "b": "2", "c": "1"}},
	} {
		res := e.read(kv.RangeRequest{Span: e.all(), Revision: tc.rev})
		got := map[string]string{}
		for _, k := range res.KVs {
			got[string(k.Key[len(e.prefix):])] = string(k.Value)
		}
		e.equal(fmt.Sprintf("at revision %d", tc.rev), got, tc.want)
		e.equal("count", res.Count, int64(len(tc.want)))
		e.equal("revision of the answer", res.Revision, r5)
		for name, value := range tc.want {
			one := e.read(kv.RangeRequest{Span: e.span(name, ""), Revision: tc.rev})
			e.equal(fmt.Sprintf("single key %s at revision %d", name, tc.rev), string(one.KVs[0].Value), value)
		}
	}
	e.equal("version of b after it was recreated", e.get("b").Version, int64(1))
	old := e.read(kv.RangeRequest{Span: e.span("a", ""), Revision: r2}).KVs[0]
	e.equal("a at the old revision", old, kv.KeyValue{Key: e.key("a"), Value: []byte("1"), CreateRevision: r1, ModRevision: r1, Version: 1})
}

func testSort(e *env) {
	e.put("b", "1")
	e.put("a", "3")
	e.put("c", "2")
	e.put("b", "4")
	e.put("b", "0") // b: version 3, created first, changed last, smallest value
	e.put("a", "5") // a: version 2
	for _, tc := range []struct {
		target kv.SortTarget
		want   string
	}{
		{kv.SortByKey, "abc"},
		{kv.SortByVersion, "cab"},
		{kv.SortByCreate, "bac"},
		{kv.SortByMod, "cba"},
		{kv.SortByValue, "bca"},
	} {
		for _, order := range []kv.SortOrder{kv.SortNone, kv.SortAscend, kv.SortDescend} {
			want := tc.want
			if order == kv.SortDescend {
				want = string([]byte{want[2], want[1], want[0]})
			}
			what := fmt.Sprintf("target %d, order %d", tc.target, order)
			res := e.read(kv.RangeRequest{Span: e.all(), SortTarget: tc.target, SortOrder: order})
			e.equalNames(what, res.KVs, want[:1], want[1:2], want[2:])
			if order != kv.SortNone {
				res = e.read(kv.RangeRequest{Span: e.all(), SortTarget: tc.target, SortOrder: order, Limit: 1})
				e.equalNames(what+", the first", res.KVs, want[:1])
				e.equal(what+", more", res.More, true)
				e.equal(what+", count", res.Count, int64(3))
			}
		}
	}
}

func testBounds(e *env) {
	r1 := e.put("a", "1")
	r2 := e.put("b", "1")
	r3 := e.put("a", "2")
	for _, tc := range []struct {
		what string
		req  kv.RangeRequest
		want []string
	}{
		{"changed at or after r2", kv.RangeRequest{MinModRevision: r2}, []string{"a", "b"}},
		{"changed at or after r3", kv.RangeRequest{MinModRevision: r3}, []string{"a"}},
		{"changed at or before r2", kv.RangeRequest{MaxModRevision: r2}, []string{"b"}},
		{"created at or after r2", kv.RangeRequest{MinCreateRevision: r2}, []string{"b"}},
		{"created at or before r1", kv.RangeRequest{MaxCreateRevision: r1}, []string{"a"}},
		{"none", kv.RangeRequest{MinModRevision: r3 + 1}, nil},
	} {
		tc.req.Span = e.all()
		res := e.read(tc.req)
		e.equalNames(tc.what, res.KVs, tc.want...)
		e.equal(tc.what+": count", res.Count, int64(2))
		e.equal(tc.what+": more", res.More, false)
		tc.req.Limit = 1
		e.equal(tc.what+": more with limit 1", e.read(tc.req).More, len(tc.want) > 1)
	}
}

func testRangeErrors(e *env) {
	now := e.put("a", "1")
	for _, tc := range []struct {
		what string
		req  kv.RangeRequest
		want error
	}{
		{"empty key", kv.RangeRequest{}, kv.ErrEmptyKey},
		{"empty key with an end", kv.RangeRequest{Span: kv.Span{End: []byte("z")}}, kv.ErrEmptyKey},
		{"a future revision", kv.RangeRequest{Span: e.all(), Revision: now + 1}, kv.ErrFutureRevision},
		{"one key at a future revision", kv.RangeRequest{Span: e.span("a", ""), Revision: now + 1000}, kv.ErrFutureRevision},
		{"a count at a future revision", kv.RangeRequest{Span: e.all(), Revision: now + 1, CountOnly: true}, kv.ErrFutureRevision},
	} {
		_, err := e.ks.Range(e.ctx, tc.req)
		e.fails(tc.what, err, tc.want)
	}
}

func testLargeValues(e *env) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	e.do(kv.Op{Put: &kv.PutOp{Key: e.key("a"), Value: large}})
	if got := e.get("a"); got == nil || !bytes.Equal(got.Value, large) {
		e.Error("a value of 1 MiB came back different")
	}
	tooLarge := bytes.Repeat([]byte("x"), 1_600_000)
	_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: e.key("b"), Value: tooLarge}}}})
	e.fails("a value of 1.6 MB", err, kv.ErrRequestTooLarge)
	e.equal("the key after that", e.get("b"), (*kv.KeyValue)(nil))
}

func testCanceledRead(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err := e.ks.Range(ctx, kv.RangeRequest{Span: e.all()})
	e.fails("range", err, context.Canceled)
}
