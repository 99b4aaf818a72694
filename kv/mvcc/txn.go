package mvcc

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// view is the state that a transaction runs on: a snapshot of the table, or a batch under
// way.
type view interface {
	// revision returns the view's revision, and the compaction revision.
	revision() (now, compacted kv.Revision)
	// scan reads a span in the view, or at req.Revision. It does not sort or apply bounds.
	scan(req *kv.RangeRequest) (*kv.RangeResult, error)
	// get reads one key in the view. Without withValue the value may be missing.
	get(key []byte, withValue bool) (*kv.KeyValue, error)
}

// plan is the path that a transaction takes. All compares, including those of nested
// transactions, are decided before the first operation runs, as in etcd.
type plan struct {
	succeeded bool
	ops       []kv.Op
	nested    []*plan // one for each op with a Txn, in order
}

// makePlan decides all compares. maxBytes bounds the values that each of them reads.
func makePlan(v view, req *kv.TxnRequest, maxBytes int64) (*plan, error) {
	p := &plan{succeeded: true, ops: req.Then}
	for i := range req.If {
		ok, err := holds(v, &req.If[i], maxBytes)
		if err != nil {
			return nil, err
		}
		if !ok {
			p.succeeded, p.ops = false, req.Else
			break
		}
	}
	for i := range p.ops {
		if t := p.ops[i].Txn; t != nil {
			n, err := makePlan(v, t, maxBytes)
			if err != nil {
				return nil, err
			}
			p.nested = append(p.nested, n)
		}
	}
	return p, nil
}

// holds evaluates a compare. A missing key has zeros in compares, and so does a span
// without keys; a missing value fails every comparison.
func holds(v view, c *kv.Compare, maxBytes int64) (bool, error) {
	if c.Span.Single() {
		e, err := v.get(c.Start, c.Target == kv.CompareValue)
		if err != nil {
			return false, err
		}
		return matches(e, c), nil
	}
	res, err := v.scan(&kv.RangeRequest{Span: c.Span, KeysOnly: c.Target != kv.CompareValue, MaxBytes: maxBytes})
	if err != nil {
		return false, err
	}
	if len(res.KVs) == 0 {
		return matches(nil, c), nil
	}
	for i := range res.KVs {
		if !matches(&res.KVs[i], c) {
			return false, nil
		}
	}
	return true, nil
}

func matches(e *kv.KeyValue, c *kv.Compare) bool {
	if e == nil {
		if c.Target == kv.CompareValue {
			return false
		}
		e = &kv.KeyValue{}
	}
	var r int
	switch c.Target {
	case kv.CompareVersion:
		r = cmp.Compare(e.Version, c.Int)
	case kv.CompareCreate:
		r = cmp.Compare(e.CreateRevision, c.Int)
	case kv.CompareMod:
		r = cmp.Compare(e.ModRevision, c.Int)
	case kv.CompareLease:
		r = cmp.Compare(e.Lease, c.Int)
	case kv.CompareValue:
		r = bytes.Compare(e.Value, c.Value)
	}
	switch c.Op {
	case kv.Equal:
		return r == 0
	case kv.NotEqual:
		return r != 0
	case kv.Greater:
		return r > 0
	case kv.Less:
		return r < 0
	}
	return true
}

// check refuses a path that cannot be taken: one that reads a compacted or future revision,
// or makes a put that checkPut, if given, refuses. The first such operation determines the
// error.
func (p *plan) check(v view, checkPut func(*kv.PutOp) error) error {
	nested := p.nested
	now, compacted := v.revision()
	for i := range p.ops {
		var err error
		switch op := &p.ops[i]; {
		case op.Range != nil:
			err = checkRevision(op.Range.Revision, now, compacted)
		case op.Put != nil && checkPut != nil:
			err = checkPut(op.Put)
		case op.Txn != nil:
			err = nested[0].check(v, checkPut)
			nested = nested[1:]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkRevision(rev, now, compacted kv.Revision) error {
	switch {
	case rev <= 0:
		return nil
	case rev > now:
		return requestError{fmt.Errorf("range at revision %d: %w (keyspace is at %d)", rev, kv.ErrFutureRevision, now)}
	case rev < compacted:
		return requestError{fmt.Errorf("range at revision %d: %w (at %d)", rev, kv.ErrCompacted, compacted)}
	}
	return nil
}

// needsAll reports whether limit and order apply only after the whole span was read.
func needsAll(req *kv.RangeRequest) bool {
	return req.SortOrder != kv.SortNone || req.SortTarget != kv.SortByKey && req.SortOrder == kv.SortNone ||
		req.MinModRevision != 0 || req.MaxModRevision != 0 ||
		req.MinCreateRevision != 0 || req.MaxCreateRevision != 0
}

// scanSorted reads a span from a view and applies order, bounds and limit.
func scanSorted(v view, req *kv.RangeRequest) (*kv.RangeResult, error) {
	if !needsAll(req) || req.CountOnly {
		return v.scan(req)
	}
	all := *req
	all.Limit = 0
	// Sorting may need the values.
	all.KeysOnly = req.KeysOnly && req.SortTarget != kv.SortByValue
	res, err := v.scan(&all)
	if err != nil {
		return nil, err
	}
	arrange(res, req)
	return res, nil
}

// arrange applies bounds, order, limit and KeysOnly to a complete span. Count is unchanged:
// like etcd, it includes keys that the bounds filter out.
func arrange(res *kv.RangeResult, req *kv.RangeRequest) {
	out := func(v, low, high int64) bool { return low != 0 && v < low || high != 0 && v > high }
	res.KVs = slices.DeleteFunc(res.KVs, func(e kv.KeyValue) bool {
		return out(e.ModRevision, req.MinModRevision, req.MaxModRevision) ||
			out(e.CreateRevision, req.MinCreateRevision, req.MaxCreateRevision)
	})
	var less func(a, b kv.KeyValue) int
	switch req.SortTarget {
	case kv.SortByVersion:
		less = func(a, b kv.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case kv.SortByCreate:
		less = func(a, b kv.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case kv.SortByMod:
		less = func(a, b kv.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case kv.SortByValue:
		less = func(a, b kv.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	}
	switch {
	case less == nil && req.SortOrder == kv.SortDescend:
		slices.Reverse(res.KVs)
	case less != nil && req.SortOrder == kv.SortDescend:
		slices.SortStableFunc(res.KVs, func(a, b kv.KeyValue) int { return less(b, a) })
	case less != nil:
		slices.SortStableFunc(res.KVs, less)
	}
	if req.Limit > 0 && int64(len(res.KVs)) > req.Limit {
		res.KVs = res.KVs[:req.Limit]
		res.More = true
	}
	if req.KeysOnly {
		for i := range res.KVs {
			res.KVs[i].Value = nil
		}
	}
}
