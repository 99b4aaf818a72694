package etcd_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
)

// faulty is a keyspace with one kind of occasional failure. It shows that the checks of
// kvtest detect failures.
type faulty struct {
	kv.Keyspace
	n atomic.Int64

	txn      func(*faulty, context.Context, kv.TxnRequest) (*kv.TxnResult, error)
	read     func(*faulty, context.Context, kv.RangeRequest) (*kv.RangeResult, error)
	response func(kv.WatchResponse) []kv.WatchResponse
}

// now is true for every nth call.
func (f *faulty) now(n int64) bool { return f.n.Add(1)%n == 0 }

func (f *faulty) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	if f.txn != nil {
		return f.txn(f, ctx, req)
	}
	return f.Keyspace.Txn(ctx, req)
}

func (f *faulty) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	if f.read != nil {
		return f.read(f, ctx, req)
	}
	return f.Keyspace.Range(ctx, req)
}

func (f *faulty) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	w, err := f.Keyspace.Watch(ctx, req)
	if err != nil || f.response == nil {
		return w, err
	}
	out := make(chan kv.WatchResponse)
	go func() {
		defer close(out)
		for r := range w.Responses() {
			rs := []kv.WatchResponse{r}
			if len(r.Events) > 0 && f.now(20) {
				rs = f.response(r)
			}
			for _, r := range rs {
				select {
				case out <- r:
				case <-ctx.Done():
				}
			}
		}
	}()
	return &faultyWatch{w, out}, nil
}

type faultyWatch struct {
	kv.Watch
	out chan kv.WatchResponse
}

func (w *faultyWatch) Responses() <-chan kv.WatchResponse { return w.out }

func TestFaultsAreDetected(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]*faulty{
		"an event is lost": {response: func(r kv.WatchResponse) []kv.WatchResponse {
			r.Events = r.Events[1:]
			if len(r.Events) == 0 {
				return nil
			}
			return []kv.WatchResponse{r}
		}},
		"an event comes twice": {response: func(r kv.WatchResponse) []kv.WatchResponse { return []kv.WatchResponse{r, r} }},
		"progress is reported before its events": {response: func(r kv.WatchResponse) []kv.WatchResponse {
			return []kv.WatchResponse{{Revision: r.Revision, Progress: true}, r}
		}},
		"an acknowledged write is lost": {txn: func(f *faulty, ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
			lost := slices.IndexFunc(req.Then, func(op kv.Op) bool {
				return op.Put != nil && !op.Put.PrevKV && op.Put.Lease == 0 && !op.Put.IgnoreValue && !op.Put.IgnoreLease
			})
			if lost < 0 || !f.now(20) {
				return f.Keyspace.Txn(ctx, req)
			}
			req.Then = slices.Delete(slices.Clone(req.Then), lost, lost+1)
			res, err := f.Keyspace.Txn(ctx, req)
			if err == nil && res.Succeeded {
				res.Results = slices.Insert(slices.Clone(res.Results), lost, kv.OpResult{Put: &kv.PutResult{}})
			}
			return res, err
		}},
		"a compare is not evaluated": {txn: func(f *faulty, ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
			if f.now(20) {
				req.If = nil
			}
			return f.Keyspace.Txn(ctx, req)
		}},
		"a read is stale": {read: func(f *faulty, ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
			res, err := f.Keyspace.Range(ctx, req)
			if err != nil || req.Revision > 0 || !f.now(5) {
				return res, err
			}
			req.Revision = max(res.Revision-5, 1)
			if old, err := f.Keyspace.Range(ctx, req); err == nil {
				old.Revision = req.Revision
				return old, nil
			}
			return res, nil
		}},
		"a key is missing from a list": {read: func(f *faulty, ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
			res, err := f.Keyspace.Range(ctx, req)
			if err == nil && len(res.KVs) > 1 && f.now(5) {
				res.KVs = res.KVs[1:]
			}
			return res, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fault.Keyspace = openAtoll(t)
			err := kvtest.CheckRandom(t.Context(), fault, 1, 1000)
			if err == nil {
				t.Error("not detected by random operations")
			} else {
				first, _, _ := strings.Cut(err.Error(), "\n")
				t.Logf("detected: %.200s", first)
			}
			fault.Keyspace = openAtoll(t)
			if kvtest.CheckConcurrent(t.Context(), fault, 1, 8, 100) == nil {
				t.Error("not detected by concurrent clients")
			}
		})
	}
}
