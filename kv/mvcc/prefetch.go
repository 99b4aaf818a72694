package mvcc

import "github.com/atoll-dev/atoll/kv"

// There may be a network between a batch and its table, and while the batch waits for an
// answer, all writers of all servers wait for it. So it loads keys in groups: once before
// it begins, for the keys that its transactions will most likely read, and once more for
// the transactions whose compares fail. Any other key is loaded when it is needed.

// prefetchKeys lists the single keys that writes read if their compares hold, and with limits those that every write reads.
func prefetchKeys(writes []*write, wantPrev, limited bool) []kv.Lookup {
	l := lookups{wantPrev: wantPrev}
	if limited {
		for _, own := range usageLookups() {
			l.add(own.Key, own.WithValue)
		}
	}
	for _, w := range writes {
		if w.txn != nil {
			l.txn(w.txn)
		}
	}
	return l.keys
}

// lookups collects keys without duplicates.
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

// prepare loads the prefetched keys, and then the keys that the writes will read given
// those. cache may be nil.
func (b *batch) prepare(writes []*write, prefetch []kv.Lookup, cache *cache) error {
	if cache != nil {
		cache.startBatch(b.base.Revision)
	}
	if err := b.preload(b.unloaded(prefetch, cache)); err != nil {
		return err
	}
	l := lookups{wantPrev: b.wantPrev}
	for _, w := range writes {
		if w.txn != nil && len(w.txn.Else) > 0 && b.likelyFails(w.txn) {
			l.ops(w.txn.Else)
		}
	}
	return b.preload(b.unloaded(l.keys, cache))
}

// unloaded returns the keys that neither the batch nor the cache has.
func (b *batch) unloaded(keys []kv.Lookup, cache *cache) []kv.Lookup {
	var rest []kv.Lookup
	for _, l := range keys {
		if c := b.keys[string(l.Key)]; c != nil && (c.hasValue || !l.WithValue) {
			continue
		}
		if cache != nil {
			if e, ok := cache.get(l.Key); ok {
				b.keys[string(l.Key)] = &keyState{base: e, hasValue: true}
				continue
			}
		}
		rest = append(rest, l)
	}
	return rest
}

// likelyFails reports whether a transaction's compares of single keys would fail if nothing
// came before it in the batch. It is an estimate, and reads nothing.
func (b *batch) likelyFails(req *kv.TxnRequest) bool {
	for i := range req.If {
		c := &req.If[i]
		if !c.Span.Single() {
			continue
		}
		known := b.keys[string(c.Start)]
		if known == nil || c.Target == kv.CompareValue && !known.hasValue {
			continue
		}
		if !matches(known.base, c) {
			return true
		}
	}
	return false
}
