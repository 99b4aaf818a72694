package mvcc

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// Range implements kv.Keyspace.
func (k *Keyspace) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	if traced(ctx) {
		return k.tracedRange(ctx, &req)
	}
	return k.read(ctx, &req)
}

func (k *Keyspace) read(ctx context.Context, req *kv.RangeRequest) (*kv.RangeResult, error) {
	if err := checkRange(req); err != nil {
		return nil, err
	}
	if err := k.open(); err != nil {
		return nil, err
	}
	if res := k.cachedGet(req); res != nil {
		return res, nil
	}
	res, err := k.ahead.answer(ctx, req)
	if res == nil && err == nil {
		return k.scan(ctx, req)
	}
	return res, err
}

// cachedGet answers the read of a single key from memory, or returns nil.
func (k *Keyspace) cachedGet(req *kv.RangeRequest) *kv.RangeResult {
	if k.cache == nil || req.Revision > 0 || !req.Span.Single() || needsAll(req) {
		return nil
	}
	e, rev, ok := k.cache.lookup(req.Start)
	// A reader may have seen a new commit in the table before the cache has it. After that
	// no reader may see an older state.
	if !ok || rev < k.seen.Load() {
		return nil
	}
	res := &kv.RangeResult{Revision: rev}
	if e != nil {
		res.Count = 1
		if !req.CountOnly {
			res.KVs = []kv.KeyValue{*e}
		}
		if req.KeysOnly && !req.CountOnly {
			res.KVs[0].Value = nil
		}
	}
	return res
}

// scan reads from a snapshot of the table.
func (k *Keyspace) scan(ctx context.Context, req *kv.RangeRequest) (*kv.RangeResult, error) {
	res, err := scanSorted(tableView{ctx: ctx, k: k, head: new(kv.Head), ahead: k.ahead}, req)
	if err != nil {
		return nil, err
	}
	k.observed(res.Revision)
	if k.cache != nil && req.Revision <= 0 && req.Span.Single() && !req.KeysOnly && !req.CountOnly && !needsAll(req) {
		var e *kv.KeyValue
		if len(res.KVs) == 1 {
			e = &res.KVs[0]
		}
		k.cache.addRead(req.Start, e, res.Revision)
	}
	return res, nil
}

// tableView reads from the table, each scan from its own snapshot.
type tableView struct {
	ctx  context.Context
	k    *Keyspace
	head *kv.Head
	// ahead reads the page after this one, if this one follows another; nil: no read-ahead.
	ahead *readAhead
}

func (v tableView) revision() (now, compacted kv.Revision) { return v.head.Revision, v.head.Compacted }

func (v tableView) get([]byte, bool) (*kv.KeyValue, error) {
	return nil, errors.ErrUnsupported // only pinnedView reads single keys
}

func (v tableView) scan(req *kv.RangeRequest) (*kv.RangeResult, error) {
	limited := limited(req)
	var left remaining
	known := false
	if limited {
		left, known = v.k.pages.remaining(req)
	}
	res, head, err := v.k.table.Range(v.ctx, *req, !known)
	if err != nil {
		return nil, err
	}
	*v.head = head
	if limited && res.More {
		if known {
			res.Count = left.keys
		}
		v.k.pages.remember(req, res)
		if v.ahead != nil && known && left.limit == req.Limit {
			v.ahead.start(req, res)
		}
	}
	return res, nil
}

// pinnedView is one revision of the table, regardless of later writes.
type pinnedView struct {
	ctx  context.Context
	k    *Keyspace
	head kv.Head
}

func (v *pinnedView) revision() (now, compacted kv.Revision) {
	return v.head.Revision, v.head.Compacted
}

func (v *pinnedView) scan(req *kv.RangeRequest) (*kv.RangeResult, error) {
	pinned := *req
	asked := req.Revision > 0
	if !asked {
		pinned.Revision = v.head.Revision
	}
	var head kv.Head
	res, err := tableView{ctx: v.ctx, k: v.k, head: &head}.scan(&pinned)
	if err != nil {
		if !asked && isCompacted(err) {
			return nil, errSnapshotCompacted
		}
		return nil, err
	}
	res.Revision = v.head.Revision
	return res, nil
}

func (v *pinnedView) get(key []byte, withValue bool) (*kv.KeyValue, error) {
	res, err := v.scan(&kv.RangeRequest{Span: kv.Span{Start: key}, KeysOnly: !withValue})
	if err != nil || len(res.KVs) == 0 {
		return nil, err
	}
	return &res.KVs[0], nil
}

// errSnapshotCompacted is returned if the revision that a read was pinned to was compacted
// meanwhile.
var errSnapshotCompacted = errors.New("compacted while reading")

// maxPins bounds the attempts of a read-only transaction. Each failure requires a
// compaction at the newest revision while it runs.
const maxPins = 10

// readTxn runs a transaction that changes nothing: all its reads are at one revision, and
// it waits for no writer.
func (k *Keyspace) readTxn(ctx context.Context, req *kv.TxnRequest) (*kv.TxnResult, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	for range maxPins {
		head, err := k.table.Head(ctx)
		if err != nil {
			return nil, err
		}
		res, err := readAt(&pinnedView{ctx, k, head}, req)
		if errors.Is(err, errSnapshotCompacted) {
			continue
		}
		if err == nil {
			k.observed(head.Revision)
		}
		return res, err
	}
	return nil, fmt.Errorf("read-only txn: %w: its revision was compacted during each attempt", kv.ErrUnavailable)
}

func readAt(v *pinnedView, req *kv.TxnRequest) (*kv.TxnResult, error) {
	p, err := makePlan(v, req, req.MaxBytes)
	if err != nil {
		return nil, err
	}
	if err := p.check(v, nil); err != nil {
		return nil, err
	}
	size := kv.NewAnswerSize(req.MaxBytes)
	return p.read(v, &size)
}

func (p *plan) read(v *pinnedView, size *kv.AnswerSize) (*kv.TxnResult, error) {
	res := &kv.TxnResult{Revision: v.head.Revision, Succeeded: p.succeeded, Results: make([]kv.OpResult, len(p.ops))}
	nested := p.nested
	for i := range p.ops {
		var err error
		if p.ops[i].Txn != nil {
			res.Results[i].Txn, err = nested[0].read(v, size)
			nested = nested[1:]
		} else {
			res.Results[i].Range, err = scanWithin(v, p.ops[i].Range, size)
		}
		if err != nil {
			return nil, err
		}
	}
	return res, nil
}
