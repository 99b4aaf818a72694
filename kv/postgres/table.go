package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// table is one keyspace of a database. It implements kv.SharedTable.
type table struct {
	db     *DB
	name   string
	id     int32
	origin []byte
	// renewed is the origin that this process has assigned, or is about to.
	renewed []byte
	gets    *getter

	mu sync.Mutex
	// newest is the newest commit in any answer.
	newest commitID
	// behind is set while the database lacks acknowledged writes.
	behind error
	// ended is set, and fell closed, when the table is never used again: the keyspace was
	// split, merged or dropped.
	ended bool
	fell  chan struct{}

	// marks records positions of recent revisions in the log.
	marks marks
	// layout of the keyspace when it was first read: see split.go.
	layout int32
	met    bool

	// polled is the newest commit known when the current poll began.
	polled commitID
}

var (
	_ kv.SharedTable     = (*table)(nil)
	_ kv.IdentifiedTable = (*table)(nil)
)

// ID implements kv.IdentifiedTable.
func (t *table) ID() int64 { return int64(t.id) }

func newTable(db *DB, name string) *table {
	t := &table{db: db, name: name, fell: make(chan struct{})}
	t.gets = newGetter(t)
	return t
}

// read runs fn with a connection, unless the database is behind.
func (t *table) read(ctx context.Context, op string, limit time.Duration, fn func(c *conn) error) error {
	if err := t.usable(); err != nil {
		return err
	}
	err := t.db.read(ctx, op, limit, fn)
	if behind := t.usable(); behind != nil {
		return behind
	}
	return err
}

// undisturbedAfter is the number of attempts of a read before it begins in a mode that cannot be
// disturbed.
const undisturbedAfter = 3

// snapshot runs statements that see one state of the database, in one round trip: send
// sends them, receive reads the answers.
func (t *table) snapshot(ctx context.Context, op string, send func(c *conn), receive func(c *conn, h head) error) error {
	tries := 0
	return t.read(ctx, op, statementLimit, func(c *conn) error {
		floor := t.floor()
		begin := qBeginRead
		if tries++; tries > undisturbedAfter {
			begin = qBeginUndisturbed
		}
		c.send(begin)
		c.send(qHead, int4(t.id))
		send(c)
		c.send(qCommit)
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		if _, err := c.result(nil); err != nil {
			return err
		}
		h, err := t.resultHead(c)
		if err != nil {
			return err
		}
		if err := receive(c, h); err != nil {
			return err
		}
		if _, err := c.result(nil); err != nil {
			return err
		}
		if err := c.ready(); err != nil {
			return err
		}
		return t.observe(h, floor)
	})
}

// resultHead reads the answer to a statement that selects this keyspace's head; more reads the
// columns after it.
func (t *table) resultHead(c *conn, more ...func(*columns)) (h head, err error) {
	found := false
	_, err = c.result(func(cols *columns) error {
		h, found = readHead(cols), true
		for _, read := range more {
			read(cols)
		}
		return nil
	})
	if err == nil && found {
		err = c.sameTable(h)
	} else if err == nil {
		c.broken = true // the other answers are still pending
		t.mu.Lock()
		defer t.mu.Unlock()
		err = t.replaced(true)
	}
	return h, err
}

// Head implements kv.Table.
func (t *table) Head(ctx context.Context) (kv.Head, error) {
	_, h, err := t.gets.get(ctx, nil, false)
	return h, err
}

// LeaseKeys implements kv.Table.
func (t *table) LeaseKeys(ctx context.Context, id kv.LeaseID) (keys [][]byte, at kv.Head, err error) {
	err = t.snapshot(ctx, "list keys of lease", func(c *conn) { c.send(qLeaseKeys, int4(t.id), int8(id)) }, func(c *conn, h head) error {
		at = h.Head
		keys, err = resultKeys(c)
		return err
	})
	return keys, at, err
}

func resultKeys(c *conn) (keys [][]byte, err error) {
	_, err = c.result(func(cols *columns) error {
		keys = append(keys, cols.bytes())
		return nil
	})
	return keys, err
}
