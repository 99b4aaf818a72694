package plugin

import (
	"container/list"
	"sync"
)

// maxDecodedBytes bounds the cache of decoded schemas, measured by the size of their messages.
// Decoded, a schema takes two to three times as much memory.
const maxDecodedBytes = 4 << 20

// A schemaCache keeps the most recently used decoded schemas.
type schemaCache struct {
	limit int

	mu   sync.Mutex
	size int
	used *list.List // of *cached, most recently used first
	by   map[*entry]*list.Element
}

type cached struct {
	entry  *entry
	schema *typeSchema
}

func newSchemaCache() *schemaCache {
	return &schemaCache{limit: maxDecodedBytes, used: list.New(), by: map[*entry]*list.Element{}}
}

func (c *schemaCache) get(e *entry) *typeSchema {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.by[e]
	if element == nil {
		return nil
	}
	c.used.MoveToFront(element)
	return element.Value.(*cached).schema
}

// put caches a schema. A single schema may exceed the limit.
func (c *schemaCache) put(e *entry, k *typeSchema) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[e] != nil {
		return // another goroutine decoded it at the same time
	}
	c.by[e] = c.used.PushFront(&cached{e, k})
	c.size += e.size
	for c.size > c.limit && c.used.Len() > 1 {
		last := c.used.Remove(c.used.Back()).(*cached)
		delete(c.by, last.entry)
		c.size -= last.entry.size
	}
}
