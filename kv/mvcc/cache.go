package mvcc

import (
	"container/list"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// cache holds the current state of keys recently read or written, and of keys known not to
// exist. It is only correct if no one else writes to the table, which the committer
// verifies with every batch.
type cache struct {
	mu    sync.Mutex
	rev   kv.Revision // revision of the entries
	limit int64
	size  int64
	keys  map[string]*list.Element
	order *list.List // of *cached, most recently used first
}

type cached struct {
	key string
	kv  *kv.KeyValue // nil: does not exist
}

// cachedOverhead is the approximate bookkeeping size of one entry.
const cachedOverhead = 250

func (c *cached) size() int64 {
	n := int64(len(c.key)) + cachedOverhead
	if c.kv != nil {
		n += int64(len(c.kv.Key) + len(c.kv.Value))
	}
	return n
}

func newCache(rev kv.Revision, limit int64) *cache {
	return &cache{rev: rev, limit: limit, keys: map[string]*list.Element{}, order: list.New()}
}

// get returns the current state of a key; ok is false if the cache does not have it.
func (c *cache) get(key []byte) (e *kv.KeyValue, ok bool) {
	e, _, ok = c.lookup(key)
	return e, ok
}

// lookup also returns the revision of the answer.
func (c *cache) lookup(key []byte) (e *kv.KeyValue, rev kv.Revision, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.keys[string(key)]
	if !ok {
		return nil, c.rev, false
	}
	c.order.MoveToFront(el)
	return el.Value.(*cached).kv, c.rev, true
}

// startBatch clears the cache if it is not at the revision that a batch starts from.
func (c *cache) startBatch(rev kv.Revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rev != rev {
		c.clear(rev)
	}
}

// commit adds the changes of a committed batch.
func (c *cache) commit(b *batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range b.dirty {
		c.put(key, b.keys[key].latest())
	}
	c.rev = b.rev
}

// addRead adds a key as read at revision rev. If there was a later write, the state may be
// outdated and is ignored.
func (c *cache) addRead(key []byte, e *kv.KeyValue, rev kv.Revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev == c.rev {
		c.put(string(key), e)
	}
}

// invalidate drops everything, because the table's state is unknown.
func (c *cache) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear(-1)
}

func (c *cache) clear(rev kv.Revision) {
	clear(c.keys)
	c.order.Init()
	c.size, c.rev = 0, rev
}

func (c *cache) put(key string, e *kv.KeyValue) {
	entry := &cached{key, e}
	if el, ok := c.keys[key]; ok {
		c.size += entry.size() - el.Value.(*cached).size()
		el.Value = entry
		c.order.MoveToFront(el)
	} else {
		c.keys[key] = c.order.PushFront(entry)
		c.size += entry.size()
	}
	for c.size > c.limit && c.order.Len() > 0 {
		last := c.order.Back()
		old := c.order.Remove(last).(*cached)
		delete(c.keys, old.key)
		c.size -= old.size()
	}
}
