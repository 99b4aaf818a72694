package provider

import (
	"container/list"
	"sync"
)

// mostRead bounds the schemas that are kept decoded, by the size of their messages. In memory they
// take two to three times as much.
const mostRead = 4 << 20

// A kindCache keeps the schemas that were read last.
type kindCache struct {
	limit int

	mu   sync.Mutex
	size int
	used *list.List // of *cached, the last used first
	by   map[*entry]*list.Element
}

type cached struct {
	entry *entry
	kind  *kind
}

func newKindCache() *kindCache {
	return &kindCache{limit: mostRead, used: list.New(), by: map[*entry]*list.Element{}}
}

func (c *kindCache) get(e *entry) *kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.by[e]
	if element == nil {
		return nil
	}
	c.used.MoveToFront(element)
	return element.Value.(*cached).kind
}

// put keeps a schema. One alone may be larger than all are together otherwise.
func (c *kindCache) put(e *entry, k *kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[e] != nil {
		return // somebody read it at the same time
	}
	c.by[e] = c.used.PushFront(&cached{e, k})
	c.size += e.size
	for c.size > c.limit && c.used.Len() > 1 {
		last := c.used.Remove(c.used.Back()).(*cached)
		delete(c.by, last.entry)
		c.size -= last.entry.size
	}
}
