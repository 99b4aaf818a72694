package partition_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
)

// inside presents the contents of one partition as a keyspace: keys are given without the
// prefix. A composite reports parent revisions for compactions and leases; inside reports
// those of the partition.
type inside struct {
	s      *store
	prefix []byte
}

func openInside(t testing.TB) kv.Keyspace {
	s := newStore(t, "p/", "q/").open()
	s.put("elsewhere", "")
	s.put("q/elsewhere", "")
	return &inside{s, []byte("p/")}
}

// TestConformance, TestRandom and TestConcurrent run the conformance suites on a partition.
func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits for leases to expire
	kvtest.Run(t, openInside)
}

func TestRandom(t *testing.T) {
	for seed := range uint64(2) {
		kvtest.Random(t, seed, 500, openInside)
	}
}

func TestConcurrent(t *testing.T) { kvtest.Concurrent(t, 1, 8, 40, openInside) }

func (v *inside) key(key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	return append(bytes.Clone(v.prefix), key...)
}

func (v *inside) span(s kv.Span) kv.Span {
	out := kv.Span{Start: v.key(s.Start), End: v.key(s.End)}
	if s.ToEnd() {
		out.End = kv.Prefix(v.prefix).End
	}
	return out
}

func (v *inside) rangeIn(r kv.RangeRequest) kv.RangeRequest {
	r.Span = v.span(r.Span)
	return r
}

func (v *inside) kv(e kv.KeyValue) kv.KeyValue {
	e.Key = e.Key[len(v.prefix):]
	return e
}

func (v *inside) ptr(e *kv.KeyValue) *kv.KeyValue {
	if e == nil {
		return nil
	}
	out := v.kv(*e)
	return &out
}

func (v *inside) kvs(list []kv.KeyValue) []kv.KeyValue {
	var out []kv.KeyValue
	for _, e := range list {
		out = append(out, v.kv(e))
	}
	return out
}

func (v *inside) rangeOut(r *kv.RangeResult) *kv.RangeResult {
	if r == nil {
		return nil
	}
	return &kv.RangeResult{Revision: r.Revision, KVs: v.kvs(r.KVs), More: r.More, Count: r.Count}
}

func (v *inside) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	res, err := v.s.Range(ctx, v.rangeIn(req))
	return v.rangeOut(res), err
}

func (v *inside) txnIn(req kv.TxnRequest) kv.TxnRequest {
	out := kv.TxnRequest{Then: v.opsIn(req.Then), Else: v.opsIn(req.Else)}
	for _, c := range req.If {
		c.Span = v.span(c.Span)
		out.If = append(out.If, c)
	}
	return out
}

func (v *inside) opsIn(ops []kv.Op) (out []kv.Op) {
	for _, op := range ops {
		var o kv.Op
		switch {
		case op.Range != nil:
			r := v.rangeIn(*op.Range)
			o.Range = &r
		case op.Put != nil:
			p := *op.Put
			p.Key = v.key(p.Key)
			o.Put = &p
		case op.Delete != nil:
			d := *op.Delete
			d.Span = v.span(d.Span)
			o.Delete = &d
		case op.Txn != nil:
			t := v.txnIn(*op.Txn)
			o.Txn = &t
		}
		out = append(out, o)
	}
	return out
}

func (v *inside) txnOut(res *kv.TxnResult) *kv.TxnResult {
	if res == nil {
		return nil
	}
	out := &kv.TxnResult{Revision: res.Revision, Succeeded: res.Succeeded}
	for _, r := range res.Results {
		var o kv.OpResult
		switch {
		case r.Range != nil:
			o.Range = v.rangeOut(r.Range)
		case r.Put != nil:
			o.Put = &kv.PutResult{Prev: v.ptr(r.Put.Prev)}
		case r.Delete != nil:
			o.Delete = &kv.DeleteResult{Deleted: r.Delete.Deleted, Prev: v.kvs(r.Delete.Prev)}
		case r.Txn != nil:
			o.Txn = v.txnOut(r.Txn)
		}
		out.Results = append(out.Results, o)
	}
	return out
}

func (v *inside) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	res, err := v.s.Txn(ctx, v.txnIn(req))
	out := v.txnOut(res)
	if err == nil && touchesNoKey(req) {
		// It belongs to no partition, so it has the parent's revision.
		out.Revision, err = v.head(ctx)
	}
	return out, err
}

// touchesNoKey reports whether a transaction has no keys.
func touchesNoKey(req kv.TxnRequest) bool {
	for _, op := range append(slices.Clone(req.Then), req.Else...) {
		if op.Txn == nil || !touchesNoKey(*op.Txn) {
			return false
		}
	}
	return len(req.If) == 0
}

type insideWatch struct {
	kv.Watch
	responses chan kv.WatchResponse
}

func (w *insideWatch) Responses() <-chan kv.WatchResponse { return w.responses }

func (v *inside) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	req.Span = v.span(req.Span)
	w, err := v.s.Watch(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &insideWatch{w, make(chan kv.WatchResponse)}
	go func() {
		defer close(out.responses)
		for r := range w.Responses() {
			var events []kv.Event
			for _, e := range r.Events {
				events = append(events, kv.Event{Type: e.Type, KV: v.kv(e.KV), Prev: v.ptr(e.Prev)})
			}
			r.Events = events
			select {
			case out.responses <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (v *inside) Compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	return v.s.opened["p/"].Compact(ctx, rev, physical)
}

func (v *inside) Status(ctx context.Context) (*kv.Status, error) { return v.s.opened["p/"].Status(ctx) }

func (v *inside) head(ctx context.Context) (kv.Revision, error) {
	res, err := v.Range(ctx, kv.RangeRequest{Span: kv.Prefix(nil), CountOnly: true})
	if err != nil {
		return 0, err
	}
	return res.Revision, nil
}

func (v *inside) lease(ctx context.Context, l *kv.Lease, err error) (*kv.Lease, error) {
	if err != nil {
		return nil, err
	}
	out := *l
	out.Keys = nil
	for _, key := range l.Keys {
		out.Keys = append(out.Keys, key[len(v.prefix):])
	}
	out.Revision, err = v.head(ctx)
	return &out, err
}

func (v *inside) Grant(ctx context.Context, id kv.LeaseID, ttl time.Duration) (*kv.Lease, error) {
	l, err := v.s.Grant(ctx, id, ttl)
	return v.lease(ctx, l, err)
}

func (v *inside) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	if _, err := v.s.Revoke(ctx, id); err != nil {
		return 0, err
	}
	return v.head(ctx)
}

func (v *inside) KeepAlive(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	l, err := v.s.KeepAlive(ctx, id)
	return v.lease(ctx, l, err)
}

func (v *inside) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	l, err := v.s.TimeToLive(ctx, id, withKeys)
	return v.lease(ctx, l, err)
}

func (v *inside) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	ids, _, err := v.s.LeaseList(ctx)
	if err != nil {
		return nil, 0, err
	}
	rev, err := v.head(ctx)
	return ids, rev, err
}
