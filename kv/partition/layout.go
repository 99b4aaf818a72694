package partition

import (
	"bytes"
	"context"
	"errors"
	"sort"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// layout is a parent with its partitions, which do not overlap. It is immutable; a split or
// merge creates a new one.
type layout struct {
	parent Engine
	parts  []*part // by prefix
}

type part struct {
	prefix string
	span   kv.Span
	id     int
	engine Engine
	times  timeline
	// renewals has the time of the next renewal for each copy of a lease; only the lease
	// loop uses it.
	renewals map[kv.LeaseID]time.Time
}

// The location of a span or transaction: inParent, an index of parts, or several.
const (
	inParent = -1
	several  = -2
)

// find returns the location of a span.
func (l *layout) find(s kv.Span) int {
	if len(l.parts) == 0 {
		return inParent
	}
	start := string(s.Start)
	// The first partition that begins after the span's start.
	next := sort.Search(len(l.parts), func(i int) bool { return l.parts[i].prefix > start })
	if i := next - 1; i >= 0 && strings.HasPrefix(start, l.parts[i].prefix) {
		if s.Single() || !s.ToEnd() && bytes.Compare(s.End, l.parts[i].span.End) <= 0 {
			return i
		}
		return several
	}
	if s.Single() {
		return l.byNamingKey(start)
	}
	if next == len(l.parts) || !s.ToEnd() && bytes.Compare(s.End, l.parts[next].span.Start) <= 0 {
		return inParent
	}
	return several
}

// byNamingKey returns the partition that a key outside of all partitions names, as
// "/registry/pods" names the partition "/registry/pods/". No client can write such a key
// (see checkPuts). It is read for the revision in the answer: Kubernetes does that to learn
// a resource's current revision before it answers a consistent list from its cache.
func (l *layout) byNamingKey(key string) int {
	for i, p := range l.parts {
		if len(p.prefix) == len(key)+1 && strings.HasPrefix(p.prefix, key) {
			return i
		}
	}
	return inParent
}

// checkPuts returns a key that a transaction puts and that names a partition.
func (l *layout) checkPuts(req *kv.TxnRequest) (key []byte) {
	for _, ops := range [2][]kv.Op{req.Then, req.Else} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Put != nil:
				if at := l.find(kv.Span{Start: op.Put.Key}); at >= 0 && !l.parts[at].span.Contains(op.Put.Key) {
					return op.Put.Key
				}
			case op.Txn != nil:
				if key := l.checkPuts(op.Txn); key != nil {
					return key
				}
			}
		}
	}
	return nil
}

// findTxn returns the location of all keys of a transaction.
func (l *layout) findTxn(req *kv.TxnRequest) int {
	if len(l.parts) == 0 {
		return inParent
	}
	f := finder{l: l}
	f.txn(req)
	if !f.any {
		return inParent
	}
	return f.at
}

type finder struct {
	l   *layout
	any bool
	at  int
}

func (f *finder) span(s kv.Span) {
	if len(s.Start) == 0 {
		return // refused at any location
	}
	switch at := f.l.find(s); {
	case !f.any:
		f.any, f.at = true, at
	case f.at != at:
		f.at = several
	}
}

func (f *finder) txn(req *kv.TxnRequest) {
	for i := range req.If {
		f.span(req.If[i].Span)
	}
	for _, ops := range [2][]kv.Op{req.Then, req.Else} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Range != nil:
				f.span(op.Range.Span)
			case op.Put != nil:
				f.span(kv.Span{Start: op.Put.Key})
			case op.Delete != nil:
				f.span(op.Delete.Span)
			case op.Txn != nil:
				f.txn(op.Txn)
			}
		}
	}
}

func (l *layout) engine(at int) Engine {
	if at == inParent {
		return l.parent
	}
	return l.parts[at].engine
}

// engines returns all engines, the parent first.
func (l *layout) engines() []Engine {
	all := []Engine{l.parent}
	for _, p := range l.parts {
		all = append(all, p.engine)
	}
	return all
}

// keep returns the partition of a prefix if it is open and still valid.
func (l *layout) keep(ctx context.Context, prefix string) *part {
	if l == nil {
		return nil
	}
	for _, p := range l.parts {
		if p.prefix == prefix && alive(ctx, p.engine) {
			return p
		}
	}
	return nil
}

func (l *layout) close() (err error) {
	for _, e := range l.engines() {
		err = errors.Join(err, e.Close())
	}
	return err
}

// Partition implements kv.Partitioned.
func (k *Keyspace) Partition(span kv.Span) (n int, ok bool) {
	l := k.layout.Load()
	switch at := l.find(span); at {
	case inParent:
		return 0, true
	case several:
		return 0, false
	default:
		return l.parts[at].id, true
	}
}
