package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the queries that answer single gets: the number of concurrent queries, and of
// gets per query.
const (
	maxGetQueries = 3
	maxGets       = 256
)

// getter reads single keys.
type getter struct {
	t       *table
	batches batches[*get]
}

func newGetter(t *table) *getter {
	g := &getter{t: t}
	g.batches = batches[*get]{queries: maxGetQueries, size: maxGets, query: g.query}
	return g
}

type get struct {
	ctx   context.Context
	key   []byte // nil: only the head is requested
	value bool   // the value is requested
	found *kv.KeyValue
	at    kv.Head
	err   error
	done  chan struct{}
}

func (one *get) context() context.Context { return one.ctx }

func (one *get) end(err error) {
	if err != nil {
		one.found, one.err = nil, err
	}
	close(one.done)
}

func (g *getter) get(ctx context.Context, key []byte, value bool) (*kv.KeyValue, kv.Head, error) {
	if err := ctx.Err(); err != nil {
		return nil, kv.Head{}, err
	}
	one := &get{ctx: ctx, key: key, value: value, done: make(chan struct{})}
	g.batches.add(one)
	select {
	case <-one.done:
		return one.found, one.at, one.err
	case <-ctx.Done():
		return nil, kv.Head{}, ctx.Err()
	}
}

func (g *getter) query(ctx context.Context, batch []*get) error {
	var keyed []*get
	for _, one := range batch {
		if one.key != nil {
			keyed = append(keyed, one)
		}
	}
	t := g.t
	return t.read(ctx, "get", t.db.opts.timeout, func(c *conn) error {
		floor := t.floor()
		c.send(qGets, int4(t.id), blobs(len(keyed), func(i int) []byte { return keyed[i].key }),
			bools(len(keyed), func(i int) bool { return keyed[i].value }))
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		var h head
		rows := 0
		_, err := c.result(func(cols *columns) error {
			if rows++; rows == 1 {
				h = readHead(cols)
			} else {
				cols.skip(numHeadColumns)
			}
			i, version := cols.int(), cols.int()
			if i == 0 || i > int64(len(keyed)) {
				return nil
			}
			one := keyed[i-1]
			if one.found = nil; version > 0 {
				one.found = &kv.KeyValue{Key: one.key, Version: version, ModRevision: cols.int(),
					CreateRevision: cols.int(), Lease: cols.int(), Value: cols.bytes()}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.ready(); err != nil {
			return err
		}
		if rows == 0 {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.replaced(true)
		}
		if err := c.sameTable(h); err != nil {
			return err
		}
		if err := t.observe(h, floor); err != nil {
			return err
		}
		for _, one := range batch {
			one.at = h.Head
		}
		return nil
	})
}

// headColumns are the columns for readHead, of a row h of head; numHeadColumns is their
// number. {table} is replaced by the dialect's expression for the table's identity.
const (
	headColumns    = `h.rev, h.sub, h.compacted, h.next_id, h.token, h.layout, h.lost, {table}`
	numHeadColumns = 8
)
