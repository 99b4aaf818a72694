package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Run is the conformance suite: every sentence of the contract, one by one. Most tests
// share one keyspace, each with its own key prefix.
func Run(t *testing.T, open Open) {
	t.Run("empty", func(t *testing.T) { testEmpty(t, open(t)) })
	// These tests wait for time to pass, and their expiries make revisions at unpredictable
	// times: they use separate keyspaces, concurrently with the others.
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for _, tc := range leaseTimeTests() {
		waiting.Go(func() {
			t.Run("lease "+tc.name, func(t *testing.T) {
				tc.run(&env{T: t, ctx: t.Context(), ks: open(t), prefix: "lease/"})
			})
		})
	}
	ks := open(t)
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"range", rangeTests()},
		{"txn", txnTests()},
		{"watch", watchTests()},
		{"lease", leaseTests()},
		// Last, because it makes history unreadable for all.
		{"compact", compactTests()},
	} {
		t.Run(group.name, func(t *testing.T) {
			for i, tc := range group.tests {
				t.Run(tc.name, func(t *testing.T) {
					tc.run(&env{T: t, ctx: t.Context(), ks: ks, prefix: fmt.Sprintf("%s/%02d/", group.name, i)})
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(e *env)
}

// env is a test's view of the shared keyspace.
type env struct {
	*testing.T
	ctx    context.Context
	ks     kv.Keyspace
	prefix string
}

func testEmpty(t *testing.T, ks kv.Keyspace) {
	e := &env{T: t, ctx: t.Context(), ks: ks}
	res := e.read(kv.RangeRequest{Span: kv.Prefix(nil)})
	e.equal("range over everything", res, &kv.RangeResult{Revision: 1})
	st, err := ks.Status(e.ctx)
	e.ok("status", err)
	e.equal("revision and compaction revision", []int64{st.Revision, st.Compacted}, []int64{1, 0})
	ids, rev, err := ks.LeaseList(e.ctx)
	e.ok("list leases", err)
	e.equal("leases and revision", []int64{int64(len(ids)), rev}, []int64{0, 1})

	res2, err := ks.Txn(e.ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("a")}}}})
	e.ok("put", err)
	e.equal("revision of the first change", res2.Revision, int64(2))
}

// Short helpers of the tests.

func (e *env) key(name string) []byte { return []byte(e.prefix + name) }

// all is the span of the test's keys.
func (e *env) all() kv.Span { return kv.Prefix([]byte(e.prefix)) }

func (e *env) span(from, to string) kv.Span {
	s := kv.Span{Start: e.key(from)}
	if to != "" {
		s.End = e.key(to)
	}
	return s
}

func (e *env) ok(what string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

func (e *env) equal(what string, got, want any) {
	e.Helper()
	if err := diff(got, want); err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

func (e *env) fails(what string, err, kind error) {
	e.Helper()
	if err := sameError(err, kind); err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

func (e *env) read(req kv.RangeRequest) *kv.RangeResult {
	e.Helper()
	res, err := e.ks.Range(e.ctx, req)
	e.ok("range "+describe(req), err)
	return res
}

func (e *env) txn(req kv.TxnRequest) *kv.TxnResult {
	e.Helper()
	res, err := e.ks.Txn(e.ctx, req)
	e.ok("txn "+describe(req), err)
	return res
}

func (e *env) do(ops ...kv.Op) *kv.TxnResult {
	e.Helper()
	return e.txn(kv.TxnRequest{Then: ops})
}

func (e *env) putOp(name, value string) kv.Op {
	return kv.Op{Put: &kv.PutOp{Key: e.key(name), Value: []byte(value)}}
}

func (e *env) leasedPutOp(name, value string, lease kv.LeaseID) kv.Op {
	return kv.Op{Put: &kv.PutOp{Key: e.key(name), Value: []byte(value), Lease: lease}}
}

func (e *env) deleteOp(name string) kv.Op {
	return kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: e.key(name)}}}
}

func (e *env) getOp(name string) kv.Op {
	return kv.Op{Range: &kv.RangeRequest{Span: kv.Span{Start: e.key(name)}}}
}

func (e *env) put(name, value string) kv.Revision {
	e.Helper()
	return e.do(e.putOp(name, value)).Revision
}

func (e *env) delete(name string) kv.Revision {
	e.Helper()
	return e.do(e.deleteOp(name)).Revision
}

func (e *env) get(name string) *kv.KeyValue {
	e.Helper()
	res := e.read(kv.RangeRequest{Span: kv.Span{Start: e.key(name)}})
	if len(res.KVs) == 0 {
		return nil
	}
	return &res.KVs[0]
}

// head returns the keyspace's current revision.
func (e *env) head() kv.Revision {
	e.Helper()
	return e.read(kv.RangeRequest{Span: e.all(), CountOnly: true}).Revision
}

// names returns the names of keys without the test's prefix.
func (e *env) names(kvs []kv.KeyValue) []string {
	var out []string
	for _, k := range kvs {
		out = append(out, string(k.Key[len(e.prefix):]))
	}
	return out
}

func (e *env) equalNames(what string, kvs []kv.KeyValue, want ...string) {
	e.Helper()
	e.equal(what, e.names(kvs), want)
}

// eventually waits for an effect of time.
func (e *env) eventually(what string, ok func() bool) {
	e.Helper()
	deadline := time.Now().Add(eventTimeout)
	for !ok() {
		if time.Now().After(deadline) {
			e.Fatalf("timed out waiting for %s (%v)", what, eventTimeout)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (e *env) watch(req kv.WatchRequest) *recorder {
	e.Helper()
	w, err := record(e.ctx, e.ks, req)
	e.ok("watch "+describe(req), err)
	e.Cleanup(w.cancel)
	return w
}

// eventsOf waits until the watch has delivered everything up to now.
func (e *env) eventsOf(w *recorder) []kv.Event {
	e.Helper()
	e.ok("catch up", w.catchUp(e.ctx, e.head()))
	all, _ := w.snapshot()
	var out []kv.Event
	for _, r := range all {
		e.ok("watch", r.Err)
		out = append(out, r.Events...)
	}
	return out
}

// endOf waits for the error that ends a watch.
func (e *env) endOf(w *recorder) kv.WatchResponse {
	e.Helper()
	r, err := w.until(e.ctx, "error", func(r kv.WatchResponse) bool { return r.Err != nil })
	e.ok("await the end of the watch", err)
	select {
	case <-w.done:
	case <-time.After(eventTimeout):
		e.Fatal("the watch continues after its error")
	}
	return r
}

func (e *env) closes(w *recorder) {
	e.Helper()
	select {
	case <-w.done:
	case <-time.After(eventTimeout):
		e.Fatal("the watch did not end with its context")
	}
	all, _ := w.snapshot()
	for _, r := range all {
		if r.Err != nil && !errors.Is(r.Err, context.Canceled) {
			e.Fatalf("the watch ended with %v, want no error or a canceled context", r.Err)
		}
	}
}
