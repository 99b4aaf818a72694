package kvtest

import (
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/kv"
)

func txnTests() []test {
	return []test{
		{"compares of one key", testCompares},
		{"compares of spans", testCompareSpans},
		{"then or else", testBranches},
		{"one revision for all changes", testOneRevision},
		{"operations see earlier ones, compares do not", testVisibility},
		{"nested", testNested},
		{"duplicate keys", testDuplicates},
		{"previous values", testPrev},
		{"keep value or lease", testIgnore},
		{"an error undoes all changes", testAtomicity},
		{"no change makes no revision", testNoChange},
		{"too many operations", testTooMany},
	}
}

func testCompares(e *env) {
	r1 := e.put("a", "m")
	r2 := e.put("a", "m") // version 2
	present := e.span("a", "")
	missing := e.span("missing", "")
	value := func(v string) kv.Compare { return kv.Compare{Target: kv.CompareValue, Value: []byte(v)} }
	number := func(t kv.CompareTarget, n int64) kv.Compare { return kv.Compare{Target: t, Int: n} }
	for _, tc := range []struct {
		span  kv.Span
		c     kv.Compare
		order int // of the existing value to the operand; 2: always false
	}{
		{present, number(kv.CompareVersion, 2), 0},
		{present, number(kv.CompareVersion, 1), 1},
		{present, number(kv.CompareVersion, 3), -1},
		{present, number(kv.CompareCreate, r1), 0},
		{present, number(kv.CompareCreate, r2), -1},
		{present, number(kv.CompareMod, r2), 0},
		{present, number(kv.CompareMod, r1), 1},
		{present, number(kv.CompareLease, 0), 0},
		{present, number(kv.CompareLease, 1), -1},
		{present, value("m"), 0},
		{present, value("a"), 1},
		{present, value("z"), -1},
		{present, value(""), 1},
		{missing, number(kv.CompareVersion, 0), 0},
		{missing, number(kv.CompareCreate, 0), 0},
		{missing, number(kv.CompareMod, 0), 0},
		{missing, number(kv.CompareMod, 1), -1},
		{missing, number(kv.CompareLease, 0), 0},
		{missing, value(""), 2},
		{missing, value("m"), 2},
	} {
		for op, holds := range map[kv.CompareOp]bool{
			kv.Equal: tc.order == 0, kv.Greater: tc.order == 1, kv.Less: tc.order == -1,
			kv.NotEqual: tc.order == 1 || tc.order == -1,
		} {
			c := tc.c
			c.Span, c.Op = tc.span, op
			e.equal(describe(c), e.txn(kv.TxnRequest{If: []kv.Compare{c}}).Succeeded, holds)
		}
	}
}

func testCompareSpans(e *env) {
	e.put("a", "1")
	e.put("b", "1")
	e.put("b", "2")
	for _, tc := range []struct {
		c    kv.Compare
		want bool
	}{
		{kv.Compare{Span: e.all(), Target: kv.CompareVersion, Op: kv.Greater, Int: 0}, true},
		{kv.Compare{Span: e.all(), Target: kv.CompareVersion, Op: kv.Equal, Int: 1}, false},
		{kv.Compare{Span: e.span("a", "b"), Target: kv.CompareVersion, Op: kv.Equal, Int: 1}, true},
		{kv.Compare{Span: e.all(), Target: kv.CompareValue, Op: kv.NotEqual, Value: []byte("3")}, true},
		{kv.Compare{Span: e.all(), Target: kv.CompareValue, Op: kv.NotEqual, Value: []byte("1")}, false},
		// Without keys it is like a missing key.
		{kv.Compare{Span: e.span("x", "z"), Target: kv.CompareVersion, Op: kv.Equal, Int: 0}, true},
		{kv.Compare{Span: e.span("x", "z"), Target: kv.CompareVersion, Op: kv.Greater, Int: 0}, false},
		{kv.Compare{Span: e.span("x", "z"), Target: kv.CompareValue, Op: kv.NotEqual, Value: []byte("1")}, false},
	} {
		e.equal(describe(tc.c), e.txn(kv.TxnRequest{If: []kv.Compare{tc.c}}).Succeeded, tc.want)
	}
}

// absent is the API server's "only if it does not exist".
func (e *env) absent(name string) kv.Compare {
	return kv.Compare{Span: e.span(name, ""), Target: kv.CompareMod}
}

func testBranches(e *env) {
	req := kv.TxnRequest{
		If:   []kv.Compare{e.absent("a")},
		Then: []kv.Op{e.putOp("a", "1")},
		Else: []kv.Op{e.getOp("a")},
	}
	first := e.txn(req)
	e.equal("first", first, &kv.TxnResult{Revision: first.Revision, Succeeded: true, Results: []kv.OpResult{{Put: &kv.PutResult{}}}})
	second := e.txn(req)
	e.equal("second", second.Succeeded, false)
	e.equal("second, revision", second.Revision, first.Revision)
	e.equal("second, result of the read", second.Results[0].Range.KVs, []kv.KeyValue{*e.get("a")})

	both := kv.TxnRequest{If: []kv.Compare{
		{Span: e.span("a", ""), Target: kv.CompareMod, Int: first.Revision},
		e.absent("a"),
	}}
	e.equal("all compares must hold", e.txn(both).Succeeded, false)
}

func testOneRevision(e *env) {
	e.put("old", "")
	w := e.watch(kv.WatchRequest{Span: e.all()})
	res := e.do(e.putOp("b", "1"), e.deleteOp("old"), e.putOp("a", "1"))
	for _, name := range []string{"a", "b"} {
		e.equal(name, e.get(name).ModRevision, res.Revision)
	}
	e.equal("head", e.head(), res.Revision)
	events := e.eventsOf(w)
	var got []string
	for _, ev := range events {
		got = append(got, describe(ev))
	}
	at := fmt.Sprintf(" at %d", res.Revision)
	e.equal("events in the order of operations", got, []string{
		fmt.Sprintf("put %q", e.key("b")) + at, fmt.Sprintf("delete %q", e.key("old")) + at, fmt.Sprintf("put %q", e.key("a")) + at,
	})
}

func testVisibility(e *env) {
	e.put("a", "old")
	nested := kv.TxnRequest{
		If:   []kv.Compare{{Span: e.span("a", ""), Target: kv.CompareValue, Value: []byte("old")}},
		Then: []kv.Op{e.getOp("a")},
	}
	res := e.do(e.getOp("a"), e.putOp("a", "new"), e.getOp("a"), e.deleteOp("b"), kv.Op{Txn: &nested})
	value := func(r *kv.RangeResult) string { return string(r.KVs[0].Value) }
	e.equal("before the put", value(res.Results[0].Range), "old")
	e.equal("after the put", value(res.Results[2].Range), "new")
	e.equal("the nested compare sees the state before the transaction", res.Results[4].Txn.Succeeded, true)
	e.equal("the nested read sees the put", value(res.Results[4].Txn.Results[0].Range), "new")
	e.equal("the read returns the stored value", res.Results[2].Range.KVs[0], *e.get("a"))
}

func testNested(e *env) {
	deepest := kv.TxnRequest{If: []kv.Compare{e.absent("a")}, Then: []kv.Op{e.putOp("d", "then")}, Else: []kv.Op{e.putOp("d", "else")}}
	inner := kv.TxnRequest{If: []kv.Compare{{Span: e.span("a", ""), Target: kv.CompareVersion, Op: kv.Greater}},
		Then: []kv.Op{e.putOp("c", "then")},
		Else: []kv.Op{e.putOp("c", "else"), {Txn: &deepest}, e.getOp("d")},
	}
	res := e.txn(kv.TxnRequest{If: []kv.Compare{e.absent("b")}, Then: []kv.Op{{Txn: &inner}, e.putOp("b", "1")}})
	e.equal("succeeded", []bool{res.Succeeded, res.Results[0].Txn.Succeeded, res.Results[0].Txn.Results[1].Txn.Succeeded}, []bool{true, false, true})
	e.equal("d as read inside", string(res.Results[0].Txn.Results[2].Range.KVs[0].Value), "then")
	for name, want := range map[string]string{"b": "1", "c": "else", "d": "then"} {
		got := e.get(name)
		e.equal(name, string(got.Value), want)
		e.equal(name+", revision", got.ModRevision, res.Revision)
	}
}

func testDuplicates(e *env) {
	deleteSpan := func(from, to string) kv.Op { return kv.Op{Delete: &kv.DeleteOp{Span: e.span(from, to)}} }
	nested := func(then, otherwise []kv.Op) kv.Op { return kv.Op{Txn: &kv.TxnRequest{Then: then, Else: otherwise}} }
	a := e.putOp("a", "1")
	ops := func(ops ...kv.Op) []kv.Op { return ops }
	for _, tc := range []struct {
		what string
		ops  []kv.Op
		want error
	}{
		{"put twice", ops(a, a), kv.ErrDuplicateKey},
		{"put and delete", ops(a, e.deleteOp("a")), kv.ErrDuplicateKey},
		{"delete and put", ops(e.deleteOp("a"), a), kv.ErrDuplicateKey},
		{"put and delete a span around it", ops(a, deleteSpan("", "b")), kv.ErrDuplicateKey},
		{"put and delete from a key on", ops(a, deleteSpan("a", "\x00")), nil},
		{"put and delete a span that ends before it", ops(a, deleteSpan("", "a")), nil},
		{"delete twice", ops(e.deleteOp("a"), e.deleteOp("a")), nil},
		{"delete overlapping spans", ops(deleteSpan("a", "c"), deleteSpan("b", "d")), nil},
		{"put outside and inside", ops(a, nested(ops(a), nil)), kv.ErrDuplicateKey},
		{"put inside on a path not taken", ops(a, nested(nil, ops(a))), kv.ErrDuplicateKey},
		{"put in two nested ones", ops(nested(ops(a), nil), nested(ops(a), nil)), kv.ErrDuplicateKey},
		{"delete inside, put outside", ops(nested(ops(e.deleteOp("a")), nil), a), kv.ErrDuplicateKey},
		{"delete outside, put inside", ops(e.deleteOp("a"), nested(ops(a), nil)), kv.ErrDuplicateKey},
		{"delete in one nested, put in the next", ops(nested(ops(e.deleteOp("a")), nil), nested(ops(a), nil)), kv.ErrDuplicateKey},
		{"put on both branches of one nested", ops(nested(ops(a), ops(a))), nil},
		{"put on one branch, delete on the other", ops(nested(ops(a), ops(e.deleteOp("a")))), nil},
		{"read what is put", ops(a, e.getOp("a"), e.getOp("a")), nil},
	} {
		_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: tc.ops})
		e.fails(tc.what, err, tc.want)
		_, err = e.ks.Txn(e.ctx, kv.TxnRequest{Else: tc.ops})
		e.fails(tc.what+", on the branch not taken", err, tc.want)
	}
	_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: ops(a), Else: ops(a)})
	e.fails("then and else", err, nil)
}

func testPrev(e *env) {
	put := func(name, value string) kv.Op {
		return kv.Op{Put: &kv.PutOp{Key: e.key(name), Value: []byte(value), PrevKV: true}}
	}
	e.equal("of a new key", e.do(put("a", "1")).Results[0].Put.Prev, (*kv.KeyValue)(nil))
	one := e.get("a")
	e.equal("of a changed key", e.do(put("a", "2")).Results[0].Put.Prev, one)
	e.equal("not requested", e.do(e.putOp("a", "3")).Results[0].Put.Prev, (*kv.KeyValue)(nil))
	e.put("b", "1")
	was := e.read(kv.RangeRequest{Span: e.all()}).KVs
	res := e.do(kv.Op{Delete: &kv.DeleteOp{Span: e.all(), PrevKV: true}}).Results[0].Delete
	e.equal("of deleted keys", res, &kv.DeleteResult{Deleted: 2, Prev: was})
	e.put("a", "1")
	res = e.do(kv.Op{Delete: &kv.DeleteOp{Span: e.all()}}).Results[0].Delete
	e.equal("of deleted keys, not requested", res, &kv.DeleteResult{Deleted: 1})
}

func testIgnore(e *env) {
	lease := e.grant(0, leaseTTL)
	e.do(e.leasedPutOp("a", "1", lease.ID))
	e.do(kv.Op{Put: &kv.PutOp{Key: e.key("a"), IgnoreValue: true, Lease: lease.ID}})
	got := e.get("a")
	e.equal("value kept", []any{string(got.Value), got.Lease, got.Version}, []any{"1", lease.ID, int64(2)})
	e.do(kv.Op{Put: &kv.PutOp{Key: e.key("a"), Value: []byte("2"), IgnoreLease: true}})
	got = e.get("a")
	e.equal("lease kept", []any{string(got.Value), got.Lease, got.Version}, []any{"2", lease.ID, int64(3)})
	e.do(kv.Op{Put: &kv.PutOp{Key: e.key("a"), IgnoreValue: true}})
	got = e.get("a")
	e.equal("value kept, lease gone", []any{string(got.Value), got.Lease}, []any{"2", int64(0)})
	for _, p := range []kv.PutOp{{IgnoreValue: true}, {IgnoreLease: true}} {
		p.Key = e.key("missing")
		_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: []kv.Op{{Put: &p}}})
		e.fails("of a missing key", err, kv.ErrKeyNotFound)
	}
}

func testAtomicity(e *env) {
	e.put("a", "1")
	before := e.head()
	for _, tc := range []struct {
		what string
		op   kv.Op
		want error
	}{
		{"a missing lease", e.leasedPutOp("b", "1", 424242), kv.ErrLeaseNotFound},
		{"a missing value to keep", kv.Op{Put: &kv.PutOp{Key: e.key("b"), IgnoreValue: true}}, kv.ErrKeyNotFound},
		{"a read at a future revision", kv.Op{Range: &kv.RangeRequest{Span: e.all(), Revision: before + 1}}, kv.ErrFutureRevision},
		{"an empty key to put", kv.Op{Put: &kv.PutOp{}}, kv.ErrEmptyKey},
		{"an empty key to delete", kv.Op{Delete: &kv.DeleteOp{}}, kv.ErrEmptyKey},
		{"an empty key to read", kv.Op{Range: &kv.RangeRequest{}}, kv.ErrEmptyKey},
		{"a missing lease in a nested transaction", kv.Op{Txn: &kv.TxnRequest{Then: []kv.Op{e.leasedPutOp("b", "1", 424242)}}}, kv.ErrLeaseNotFound},
	} {
		_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: []kv.Op{e.putOp("a", "2"), tc.op}})
		e.fails(tc.what, err, tc.want)
		e.equal(tc.what+": the key put before it", string(e.get("a").Value), "1")
		e.equal(tc.what+": revision", e.head(), before)
	}
	_, err := e.ks.Txn(e.ctx, kv.TxnRequest{If: []kv.Compare{{}}})
	e.fails("an empty key to compare", err, kv.ErrEmptyKey)
}

func testNoChange(e *env) {
	before := e.put("a", "1")
	for _, tc := range []struct {
		what string
		req  kv.TxnRequest
	}{
		{"nothing at all", kv.TxnRequest{}},
		{"a read", kv.TxnRequest{Then: []kv.Op{e.getOp("a")}}},
		{"deleting a missing key", kv.TxnRequest{Then: []kv.Op{e.deleteOp("x")}}},
		{"a put on the other branch", kv.TxnRequest{If: []kv.Compare{e.absent("a")}, Then: []kv.Op{e.putOp("a", "2")}}},
	} {
		e.equal(tc.what+": its revision", e.txn(tc.req).Revision, before)
		e.equal(tc.what+": head", e.head(), before)
	}
	e.equal("putting the same value again is a change", e.put("a", "1"), before+1)
}

func testTooMany(e *env) {
	ops := make([]kv.Op, 129)
	for i := range ops {
		ops[i] = e.putOp(strings.Repeat("k", i+1), "")
	}
	e.equal("128 operations", len(e.do(ops[:128]...).Results), 128)
	_, err := e.ks.Txn(e.ctx, kv.TxnRequest{Then: ops})
	e.fails("129 operations", err, kv.ErrTooManyOps)
}
