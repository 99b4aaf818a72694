package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the queries that read leases: the number of concurrent queries, and of keyspaces per query.
const (
	maxLeaseQueries = 2
	maxLeaseReads   = 256
)

// leaseReader reads the leases of keyspaces. Each open keyspace of this process asks for its own every few seconds, and there may be
// thousands of them: so they share queries.
type leaseReader struct {
	db      *DB
	batches batches[*leaseRead]
}

func newLeaseReader(db *DB) *leaseReader {
	r := &leaseReader{db: db}
	r.batches = batches[*leaseRead]{queries: maxLeaseQueries, size: maxLeaseReads, query: r.query}
	return r
}

// leaseRead is a call for the leases of a keyspace.
type leaseRead struct {
	ctx    context.Context
	t      *table
	floor  commitID // the newest commit known when the query began
	met    bool     // the keyspace has a head
	leases []kv.LeaseRecord
	err    error
	done   chan struct{}
}

func (l *leaseRead) context() context.Context { return l.ctx }

func (l *leaseRead) end(err error) {
	if err != nil {
		l.leases, l.err = nil, err
	}
	close(l.done)
}

// Leases implements kv.Table.
func (t *table) Leases(ctx context.Context) ([]kv.LeaseRecord, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := t.usable(); err != nil {
		return nil, err
	}
	one := &leaseRead{ctx: ctx, t: t, done: make(chan struct{})}
	t.db.leases.batches.add(one)
	select {
	case <-one.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if behind := t.usable(); behind != nil {
		return nil, behind
	}
	return one.leases, one.err
}

func (r *leaseReader) query(ctx context.Context, batch []*leaseRead) error {
	return r.db.read(ctx, "list leases", statementLimit, func(c *conn) error {
		for _, one := range batch {
			one.floor, one.met, one.leases, one.err = one.t.floor(), false, nil, nil
		}
		c.send(qLeases, int4s(len(batch), func(i int) int32 { return batch[i].t.id }))
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		_, err := c.result(func(cols *columns) error {
			h := readHead(cols)
			i := cols.int() - 1
			if cols.err != nil || i < 0 || i >= int64(len(batch)) {
				return cols.err
			}
			one := batch[i]
			if !one.met {
				one.met = true
				if err := c.sameTable(h); err != nil {
					return err
				}
				one.err = one.t.observe(h, one.floor)
			}
			if record := (kv.LeaseRecord{ID: cols.int(), TTL: cols.int(), Beat: cols.int()}); record.TTL > 0 { // a keyspace without leases has one row without a lease
				one.leases = append(one.leases, record)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.ready(); err != nil {
			return err
		}
		for _, one := range batch {
			if !one.met {
				one.t.mu.Lock()
				one.err = one.t.replaced(true)
				one.t.mu.Unlock()
			}
		}
		return nil
	})
}
