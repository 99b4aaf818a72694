package mvcc

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// batch runs client transactions, one after the other, inside one transaction of the table.
// It consists of the table's state at its start and the batch's own changes since. Each
// client transaction that makes changes gets the next revision.
type batch struct {
	tx            kv.Tx
	base          kv.Head
	rev           kv.Revision // of the last client transaction that changed something
	wantPrev      bool        // load the replaced states, values included
	keys          map[string]*keyState
	dirty         []string // keys that the batch changed
	changes       []kv.Change
	leases        map[kv.LeaseID]*kv.LeaseRecord // nil: known not to exist
	touchedLeases map[kv.LeaseID]struct{}        // leases granted or renewed by the batch
	usage         *usage                         // nil if the keyspace has no limits
	// for the current client transaction
	started int  // len(changes) when it began
	exempt  bool // from limits
}

// keyState is the state of one key: in the table, and as changed by the batch.
type keyState struct {
	base      *kv.KeyValue
	hasValue  bool // base has its value
	overrides []override
}

type override struct {
	rev kv.Revision
	kv  *kv.KeyValue // nil: deleted
}

func newBatch(tx kv.Tx, wantPrev bool) *batch {
	head := tx.Head()
	return &batch{
		tx: tx, base: head, rev: head.Revision, wantPrev: wantPrev,
		keys: map[string]*keyState{}, leases: map[kv.LeaseID]*kv.LeaseRecord{}, touchedLeases: map[kv.LeaseID]struct{}{},
	}
}

// now is the revision that the current transaction sees: its own, once it has made a
// change.
func (b *batch) now() kv.Revision {
	if len(b.changes) > b.started {
		return b.rev + 1
	}
	return b.rev
}

func (b *batch) revision() (now, compacted kv.Revision) { return b.now(), b.base.Compacted }

// preload loads many keys at once.
func (b *batch) preload(keys []kv.Lookup) error {
	if len(keys) == 0 {
		return nil
	}
	found, err := b.tx.Load(keys)
	if err != nil {
		return err
	}
	for i, l := range keys {
		c := b.keys[string(l.Key)]
		if c == nil {
			c = &keyState{}
			b.keys[string(l.Key)] = c
		}
		c.base, c.hasValue = found[i], l.WithValue || found[i] == nil
	}
	return nil
}

func (b *batch) keyState(key []byte, withValue bool) (*keyState, error) {
	c := b.keys[string(key)]
	if c != nil && (c.hasValue || !withValue || len(c.overrides) > 0) {
		return c, nil // a key that the batch changed has its value
	}
	return b.load(key, withValue)
}

func (b *batch) load(key []byte, withValue bool) (*keyState, error) {
	err := b.preload([]kv.Lookup{{Key: key, WithValue: withValue}})
	return b.keys[string(key)], err
}

func (c *keyState) latest() *kv.KeyValue {
	if n := len(c.overrides); n > 0 {
		return c.overrides[n-1].kv
	}
	return c.base
}

func (c *keyState) at(rev kv.Revision) *kv.KeyValue {
	for i := len(c.overrides) - 1; i >= 0; i-- {
		if c.overrides[i].rev <= rev {
			return c.overrides[i].kv
		}
	}
	return c.base
}

func (b *batch) get(key []byte, withValue bool) (*kv.KeyValue, error) {
	c, err := b.keyState(key, withValue)
	if err != nil {
		return nil, err
	}
	return c.latest(), nil
}

func (b *batch) scan(req *kv.RangeRequest) (*kv.RangeResult, error) {
	now, rev := b.now(), req.Revision
	if rev <= 0 {
		rev = now
	}
	if rev < b.base.Revision {
		res, err := b.tx.Range(*req, true)
		if err == nil {
			res.Revision = now
		}
		return res, err
	}
	if req.Span.Single() {
		return b.scanOne(req, now, rev)
	}
	changed := map[string]*kv.KeyValue{}
	for _, key := range b.dirty {
		if c := b.keys[key]; c.overrides[0].rev <= rev && req.Span.Contains([]byte(key)) {
			changed[key] = c.at(rev)
		}
	}
	under := *req
	under.Revision = 0
	if len(changed) > 0 {
		// The limit applies to the merged result.
		under.Limit, under.CountOnly = 0, false
		under.KeysOnly = req.KeysOnly || req.CountOnly
	}
	res, err := b.tx.Range(under, true)
	if err != nil {
		return nil, err
	}
	res.Revision = now
	if len(changed) > 0 {
		overlay(res, req, changed)
	}
	return res, nil
}

// overlay merges changed keys into the table's complete result for a span.
func overlay(res *kv.RangeResult, req *kv.RangeRequest, changed map[string]*kv.KeyValue) {
	mixed := make([]kv.KeyValue, 0, len(res.KVs)+len(changed))
	for _, e := range res.KVs {
		if _, ok := changed[string(e.Key)]; !ok {
			mixed = append(mixed, e)
		}
	}
	for _, e := range changed {
		if e == nil {
			continue
		}
		e := *e
		if req.KeysOnly {
			e.Value = nil
		}
		mixed = append(mixed, e)
	}
	slices.SortFunc(mixed, func(a, b kv.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	res.Count, res.KVs, res.More = int64(len(mixed)), mixed, false
	if req.CountOnly {
		res.KVs = nil
		return
	}
	if req.Limit > 0 && res.Count > req.Limit {
		res.KVs, res.More = mixed[:req.Limit], true
	}
}

func (b *batch) scanOne(req *kv.RangeRequest, now, rev kv.Revision) (*kv.RangeResult, error) {
	res := &kv.RangeResult{Revision: now}
	withValue := !req.KeysOnly && !req.CountOnly
	c, err := b.keyState(req.Start, withValue)
	if err != nil {
		return nil, err
	}
	if withValue && !c.hasValue && c.at(rev) == c.base {
		// The batch changed the key, but after the requested revision.
		if c, err = b.load(req.Start, true); err != nil {
			return nil, err
		}
	}
	e := c.at(rev)
	if e == nil {
		return res, nil
	}
	res.Count = 1
	if !req.CountOnly {
		res.KVs = []kv.KeyValue{*e}
		if req.KeysOnly {
			res.KVs[0].Value = nil
		}
	}
	return res, nil
}

// txn runs one client transaction. If the error wraps one of kv's errors about the request
// itself, the batch is unchanged. Any other error is the table's and ends the batch.
func (b *batch) txn(req *kv.TxnRequest) (*kv.TxnResult, error) {
	b.started = len(b.changes)
	dirty := len(b.dirty)
	p, err := makePlan(b, req, req.MaxBytes)
	if err != nil {
		return nil, refuseLarge(err)
	}
	if err := p.check(b, b.checkPut); err != nil {
		return nil, err
	}
	size := kv.NewAnswerSize(req.MaxBytes)
	used := b.changed()
	res, err := b.execute(p, &size)
	if err == nil {
		err = b.checkLimits(used)
	}
	if err != nil {
		b.undo(dirty)
		if b.usage != nil {
			b.usage.change = used
		}
		return nil, refuseLarge(err)
	}
	res.Revision = b.finish()
	return res, nil
}

// finish ends the current transaction and returns the revision to report.
func (b *batch) finish() kv.Revision {
	if len(b.changes) > b.started {
		b.rev++
	}
	b.started = len(b.changes)
	return b.rev
}

// requestError marks an error that affects only one client transaction.
type requestError struct{ error }

func (e requestError) Unwrap() error { return e.error }

func (b *batch) checkPut(put *kv.PutOp) error {
	if put.IgnoreValue || put.IgnoreLease {
		e, err := b.get(put.Key, put.IgnoreValue)
		if err != nil {
			return err
		}
		if e == nil {
			return requestError{fmt.Errorf("put %q, keeping its value or lease: %w", put.Key, kv.ErrKeyNotFound)}
		}
	}
	if put.Lease != 0 {
		l, err := b.findLease(put.Lease)
		if err != nil {
			return err
		}
		if l == nil {
			return requestError{fmt.Errorf("put %q with lease %d: %w", put.Key, put.Lease, kv.ErrLeaseNotFound)}
		}
	}
	return nil
}

func (b *batch) execute(p *plan, size *kv.AnswerSize) (*kv.TxnResult, error) {
	res := &kv.TxnResult{Succeeded: p.succeeded, Results: make([]kv.OpResult, len(p.ops))}
	nested := p.nested
	for i := range p.ops {
		op, out := &p.ops[i], &res.Results[i]
		var err error
		switch {
		case op.Range != nil:
			out.Range, err = scanWithin(b, op.Range, size)
		case op.Put != nil:
			if out.Put, err = b.put(op.Put); err == nil && out.Put.Prev != nil {
				err = size.Add(out.Put.Prev)
			}
		case op.Delete != nil:
			out.Delete, err = b.delete(op.Delete, size)
		case op.Txn != nil:
			out.Txn, err = b.execute(nested[0], size)
			nested = nested[1:]
			if err == nil {
				out.Txn.Revision = b.now()
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return res, nil
}

func (b *batch) put(op *kv.PutOp) (*kv.PutResult, error) {
	c, err := b.keyState(op.Key, b.wantPrev || op.PrevKV || op.IgnoreValue)
	if err != nil {
		return nil, err
	}
	prev := c.latest()
	rev := b.rev + 1
	e := &kv.KeyValue{
		Key: op.Key, Value: op.Value, Lease: op.Lease,
		CreateRevision: rev, ModRevision: rev, Version: 1,
	}
	res := &kv.PutResult{}
	if prev != nil {
		e.CreateRevision, e.Version = prev.CreateRevision, prev.Version+1
		if op.IgnoreValue {
			e.Value = prev.Value
		}
		if op.IgnoreLease {
			e.Lease = prev.Lease
		}
		if op.PrevKV {
			res.Prev = prev
		}
	}
	b.change(c, kv.Change{KV: *e}, e, prev)
	return res, nil
}

func (b *batch) delete(op *kv.DeleteOp, size *kv.AnswerSize) (*kv.DeleteResult, error) {
	res := &kv.DeleteResult{}
	var keys [][]byte
	if op.Span.Single() {
		keys = [][]byte{op.Start}
	} else {
		withValue := b.wantPrev || op.PrevKV
		req := &kv.RangeRequest{Span: op.Span, KeysOnly: !withValue}
		if op.PrevKV {
			req.MaxBytes = size.Left()
		}
		found, err := b.scan(req)
		if err != nil {
			return nil, err
		}
		for i := range found.KVs {
			keys = append(keys, found.KVs[i].Key)
			b.addScanned(&found.KVs[i], withValue)
		}
	}
	for _, key := range keys {
		prev, err := b.deleteKey(key, b.wantPrev || op.PrevKV)
		if err != nil {
			return nil, err
		}
		if prev == nil {
			continue
		}
		res.Deleted++
		if op.PrevKV {
			if err := size.Add(prev); err != nil {
				return nil, err
			}
			res.Prev = append(res.Prev, *prev)
		}
	}
	return res, nil
}

// addScanned adds a key found by a scan, so that it need not be loaded. Keys that the batch
// has changed are already known.
func (b *batch) addScanned(e *kv.KeyValue, withValue bool) {
	c := b.keys[string(e.Key)]
	if c == nil {
		c = &keyState{}
		b.keys[string(e.Key)] = c
	}
	if len(c.overrides) == 0 && !c.hasValue {
		c.base, c.hasValue = e, withValue
	}
}

// deleteKey deletes a key and returns its previous state, nil if it did not exist.
func (b *batch) deleteKey(key []byte, withValue bool) (*kv.KeyValue, error) {
	c, err := b.keyState(key, withValue)
	if err != nil {
		return nil, err
	}
	prev := c.latest()
	if prev != nil {
		b.change(c, kv.Change{Deleted: true, KV: kv.KeyValue{Key: key, ModRevision: b.rev + 1}}, nil, prev)
	}
	return prev, nil
}

func (b *batch) change(c *keyState, ch kv.Change, e, prev *kv.KeyValue) {
	ch.Sub = int64(len(b.changes) - b.started)
	if prev != nil {
		ch.PrevRevision, ch.Prev = prev.ModRevision, prev
	}
	if b.usage != nil {
		b.usage.count(prev, e)
	}
	if len(c.overrides) == 0 {
		b.dirty = append(b.dirty, string(ch.KV.Key))
	}
	c.overrides = append(c.overrides, override{b.rev + 1, e})
	b.changes = append(b.changes, ch)
}
