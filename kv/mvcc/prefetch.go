package mvcc

import "github.com/atoll-dev/atoll/kv"

// Between a batch and its table there may be a network, and while the batch
// waits for an answer all writers of all servers wait for it. So it asks for
// keys together: once, before it begins, for what its transactions will most
// likely look at, and once more for what those will look at whose compares do
// not hold. Whatever is left out is loaded when it is needed.

// lookAhead lists the single keys that writes look at if their compares hold.
func lookAhead(writes []*write, wantPrev bool) []kv.Lookup {
	l := lookups{wantPrev: wantPrev}
	for _, w := range writes {
		if w.txn != nil {
			l.txn(w.txn)
		}
	}
	return l.keys
}

// lookups collects keys, each once.
type lookups struct {
	wantPrev bool
	keys     []kv.Lookup
	index    map[string]int
}

func (l *lookups) txn(req *kv.TxnRequest) {
	l.compares(req)
	l.ops(req.Then)
}

func (l *lookups) compares(req *kv.TxnRequest) {
	for i := range req.If {
		if c := &req.If[i]; c.Span.Single() {
			l.add(c.Start, c.Target == kv.CompareValue)
		}
	}
}

func (l *lookups) ops(ops []kv.Op) {
	for i := range ops {
		switch op := &ops[i]; {
		case op.Put != nil:
			l.add(op.Put.Key, l.wantPrev || op.Put.PrevKV || op.Put.IgnoreValue)
		case op.Delete != nil && op.Delete.Span.Single():
			l.add(op.Delete.Start, l.wantPrev || op.Delete.PrevKV)
		case op.Range != nil && op.Range.Span.Single() && op.Range.Revision <= 0:
			l.add(op.Range.Start, !op.Range.KeysOnly && !op.Range.CountOnly)
		case op.Txn != nil:
			l.txn(op.Txn)
		}
	}
}

func (l *lookups) add(key []byte, withValue bool) {
	if i, known := l.index[string(key)]; known {
		l.keys[i].WithValue = l.keys[i].WithValue || withValue
		return
	}
	if l.index == nil {
		l.index = map[string]int{}
	}
	l.index[string(key)] = len(l.keys)
	l.keys = append(l.keys, kv.Lookup{Key: key, WithValue: withValue})
}

// prepare loads what was asked for ahead, and then what the writes will look
// at in the light of that. cache may be nil.
func (b *batch) prepare(writes []*write, ahead []kv.Lookup, cache *cache) error {
	if cache != nil {
		cache.startBatch(b.base.Revision)
	}
	if err := b.preload(b.unknown(ahead, cache)); err != nil {
		return err
	}
	l := lookups{wantPrev: b.wantPrev}
	for _, w := range writes {
		if w.txn != nil && len(w.txn.Else) > 0 && b.fails(w.txn) {
			l.ops(w.txn.Else)
		}
	}
	return b.preload(b.unknown(l.keys, cache))
}

// unknown leaves out the keys that the batch knows, or learns from the cache.
func (b *batch) unknown(keys []kv.Lookup, cache *cache) []kv.Lookup {
	var rest []kv.Lookup
	for _, l := range keys {
		if c := b.cells[string(l.Key)]; c != nil && (c.hasValue || !l.WithValue) {
			continue
		}
		if cache != nil {
			if e, ok := cache.get(l.Key); ok {
				b.cells[string(l.Key)] = &cell{base: e, hasValue: true}
				continue
			}
		}
		rest = append(rest, l)
	}
	return rest
}

// fails tells whether a transaction's compares of single keys would fail if
// nothing came before it in the batch. It is a guess, and reads nothing.
func (b *batch) fails(req *kv.TxnRequest) bool {
	for i := range req.If {
		c := &req.If[i]
		if !c.Span.Single() {
			continue
		}
		known := b.cells[string(c.Start)]
		if known == nil || c.Target == kv.CompareValue && !known.hasValue {
			continue
		}
		if !matches(known.base, c) {
			return true
		}
	}
	return false
}
