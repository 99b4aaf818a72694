package partition

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// Range implements kv.Keyspace. A range over several partitions reads the present state of
// each. At an older revision it is refused, because they have no revision in common.
func (k *Keyspace) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		var res *kv.RangeResult
		var err error
		if at := l.find(req.Span); at != several {
			res, err = l.engine(at).Range(ctx, req)
		} else {
			res, err = k.rangeSeveral(ctx, l, req)
		}
		if !k.shouldRetry(ctx, l, try, err) {
			return res, err
		}
	}
}

func (k *Keyspace) rangeSeveral(ctx context.Context, l *layout, req kv.RangeRequest) (*kv.RangeResult, error) {
	if req.Revision > 0 {
		return nil, k.refuse("range at revision %d over %s: each has its own revisions; read without a revision, or one partition at a time",
			req.Revision, l.describe(req.Span))
	}
	res, err := l.parent.Range(ctx, req)
	if err != nil {
		return nil, err
	}
	size := kv.NewAnswerSize(req.MaxBytes)
	if err := size.AddAll(res.KVs); err != nil {
		return nil, err
	}
	out := *res
	out.KVs = slices.Clone(res.KVs)
	for _, p := range l.parts {
		one := req
		if one.Span = p.within(req.Span); len(one.Start) == 0 {
			continue
		}
		one.MaxBytes = size.Left()
		res, err := p.engine.Range(ctx, one)
		if err == nil {
			err = size.AddAll(res.KVs)
		}
		if err != nil {
			return nil, err
		}
		out.KVs = append(out.KVs, res.KVs...)
		out.Count += res.Count
		out.More = out.More || res.More
	}
	slices.SortStableFunc(out.KVs, order(req))
	if req.Limit > 0 && int64(len(out.KVs)) > req.Limit {
		out.KVs, out.More = out.KVs[:req.Limit], true
	}
	return &out, nil
}

// within returns the part of a span that lies in the partition; its Start is empty if there
// is none.
func (p *part) within(s kv.Span) kv.Span {
	out := p.span
	if bytes.Compare(s.Start, out.Start) > 0 {
		out.Start = s.Start
	}
	if !s.ToEnd() && bytes.Compare(s.End, out.End) < 0 {
		out.End = s.End
	}
	if bytes.Compare(out.Start, out.End) >= 0 {
		return kv.Span{}
	}
	return out
}

// order returns the comparison function for a request's sort order.
func order(req kv.RangeRequest) func(a, b kv.KeyValue) int {
	target := func(a, b kv.KeyValue) int { return bytes.Compare(a.Key, b.Key) }
	switch req.SortTarget {
	case kv.SortByVersion:
		target = func(a, b kv.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case kv.SortByCreate:
		target = func(a, b kv.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case kv.SortByMod:
		target = func(a, b kv.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case kv.SortByValue:
		target = func(a, b kv.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	}
	if req.SortOrder == kv.SortDescend {
		return func(a, b kv.KeyValue) int { return target(b, a) }
	}
	return target
}

// Txn implements kv.Keyspace. All keys of the transaction must lie in one partition.
func (k *Keyspace) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	attached := false
	for try := 0; ; try++ {
		l := k.layout.Load()
		at := l.findTxn(&req)
		if at == several {
			return nil, k.refuse("transaction over more than one of %s: each commits separately; keep keys that must change together in one of them", l.names())
		}
		if at != inParent {
			if key := l.checkPuts(&req); key != nil {
				return nil, k.refuse("put of key %q: the key is reserved, because the keys below it are a partition", key)
			}
		}
		res, err := l.engine(at).Txn(ctx, req)
		if at != inParent && !attached && errors.Is(err, kv.ErrLeaseNotFound) {
			// The partition may not have a copy of the lease yet.
			var some bool
			if some, err = k.attach(ctx, l, l.parts[at], &req); err == nil {
				attached = true
				if res, err = nil, fmt.Errorf("txn: %w", kv.ErrLeaseNotFound); some {
					res, err = l.engine(at).Txn(ctx, req)
				}
			}
		}
		if !k.shouldRetry(ctx, l, try, err) {
			return res, err
		}
	}
}

// Watch implements kv.Keyspace. A watch is resumed by revision, so its span must lie in one
// partition.
func (k *Keyspace) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		at := l.find(req.Span)
		if at == several {
			return nil, k.refuse("watch over %s: each has its own revisions, so no revision could resume the watch; watch one partition at a time", l.describe(req.Span))
		}
		w, err := l.engine(at).Watch(ctx, req)
		if !k.shouldRetry(ctx, l, try, err) {
			return w, err
		}
	}
}

// Status implements kv.Keyspace: the parent's revisions, and the size of the database.
func (k *Keyspace) Status(ctx context.Context) (*kv.Status, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		st, err := l.parent.Status(ctx)
		if !k.shouldRetry(ctx, l, try, err) {
			return st, err
		}
	}
}

// Probe implements kv.Prober.
func (k *Keyspace) Probe(ctx context.Context) error {
	for try := 0; ; try++ {
		l := k.layout.Load()
		err := l.probe(ctx)
		if !k.shouldRetry(ctx, l, try, err) {
			return err
		}
	}
}

func (l *layout) probe(ctx context.Context) error {
	if err := kv.Probe(ctx, l.parent); err != nil {
		return err
	}
	for _, p := range l.parts {
		if _, err := p.engine.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(p.prefix)}, CountOnly: true}); err != nil {
			return err
		}
	}
	return nil
}

// Defragment implements kv.Defragmenter: the partitions are in one database.
func (k *Keyspace) Defragment(ctx context.Context) error {
	for try := 0; ; try++ {
		l := k.layout.Load()
		d, ok := l.parent.(kv.Defragmenter)
		if !ok {
			return nil
		}
		if err := d.Defragment(ctx); !k.shouldRetry(ctx, l, try, err) {
			return err
		}
	}
}

// History returns the size of the history that the parent and all partitions keep together.
// Errors: errors.ErrUnsupported, if one of them cannot report it.
func (k *Keyspace) History(ctx context.Context) (kv.History, error) {
	for try := 0; ; try++ {
		l := k.layout.Load()
		all, err := l.history(ctx)
		if !k.shouldRetry(ctx, l, try, err) {
			return all, err
		}
	}
}

func (l *layout) history(ctx context.Context) (all kv.History, err error) {
	for i, e := range l.engines() {
		h, ok := e.(interface {
			History(ctx context.Context) (kv.History, error)
		})
		if !ok {
			return kv.History{}, fmt.Errorf("read the size of history: %w", errors.ErrUnsupported)
		}
		one, err := h.History(ctx)
		if err != nil {
			return kv.History{}, err
		}
		if i == 0 {
			all.Head = one.Head
		}
		all.Changes += one.Changes
		all.Unswept += one.Unswept
	}
	return all, nil
}

func (k *Keyspace) refuse(format string, args ...any) error {
	return fmt.Errorf("keyspace %q: %w: %s", k.name, kv.ErrInvalidRequest, fmt.Sprintf(format, args...))
}

// describe lists the partitions that a span overlaps.
func (l *layout) describe(s kv.Span) string {
	text := "the keyspace itself"
	for _, p := range l.parts {
		if len(p.within(s).Start) > 0 {
			text += fmt.Sprintf(" and its partition %q", p.prefix)
		}
	}
	return text
}

func (l *layout) names() string { return l.describe(kv.Prefix(nil)) }
