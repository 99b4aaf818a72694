package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/atoll-dev/atoll/kv"
)

// table is one keyspace of a database. It implements kv.Table.
type table struct {
	db   *DB
	id   int64
	name string
	end  ending
	// renamed is set when the keyspace got another name: another table has it then.
	renamed atomic.Bool
}

var (
	_ kv.ExclusiveTable  = (*table)(nil)
	_ kv.IdentifiedTable = (*table)(nil)
	_ kv.DropNotifier    = (*table)(nil)
)

// ID implements kv.IdentifiedTable.
func (t *table) ID() int64 { return t.id }

// Exclusive implements kv.ExclusiveTable: the lock file excludes other processes.
func (t *table) Exclusive() bool { return true }

// Update implements kv.Table. It ignores prefetch: loading a key needs no round trip.
func (t *table) Update(ctx context.Context, _ []kv.Lookup, fn func(kv.Tx) error) error {
	return t.write(ctx, t.db.writer.do, func(c *conn, head kv.Head) error { return fn(&tx{t: t, c: c, head: head}) })
}

// write runs fn in a transaction of the writer, which queues it as submit does, unless the
// keyspace was dropped or renamed.
func (t *table) write(ctx context.Context, submit func(context.Context, func(*conn) error) error, fn func(*conn, kv.Head) error) error {
	return t.named(submit(ctx, func(c *conn) error {
		if t.renamed.Load() {
			return kv.ErrRenamed
		}
		head, done, err := c.snapshot(t.id)
		if err != nil {
			return err
		}
		done() // the write transaction holds the snapshot
		return fn(c, head)
	}))
}

// read runs fn on a snapshot of the database, unless the keyspace was dropped or renamed.
func (t *table) read(ctx context.Context, op string, fn func(*conn, kv.Head) error) error {
	return t.named(t.db.read(ctx, op, func(c *conn) error {
		if t.renamed.Load() {
			return kv.ErrRenamed
		}
		head, done, err := c.snapshot(t.id)
		if err != nil {
			return err
		}
		defer done()
		return fn(c, head)
	}))
}

func (t *table) Head(ctx context.Context) (head kv.Head, err error) {
	err = t.read(ctx, "read head", func(_ *conn, h kv.Head) error {
		head = h
		return nil
	})
	return head, err
}

func (t *table) Range(ctx context.Context, req kv.RangeRequest, wantCount bool) (res *kv.RangeResult, head kv.Head, err error) {
	err = t.read(ctx, "range", func(c *conn, h kv.Head) (err error) {
		head = h
		res, err = c.scan(t.id, h, req, wantCount)
		return err
	})
	return res, head, err
}

func (t *table) SetCompacted(ctx context.Context, rev kv.Revision) error {
	return t.write(ctx, t.db.writer.do, func(c *conn, head kv.Head) error {
		// Another caller may have compacted or written since this one checked.
		if rev <= head.Compacted {
			return fmt.Errorf("compact keyspace %q at revision %d: %w (already at %d)", t.name, rev, kv.ErrCompacted, head.Compacted)
		}
		if rev > head.Revision {
			return fmt.Errorf("compact keyspace %q at revision %d: %w (it is at %d)", t.name, rev, kv.ErrFutureRevision, head.Revision)
		}
		return c.exec(qCompact, t.id, rev)
	})
}

func (t *table) Leases(ctx context.Context) (all []kv.LeaseRecord, err error) {
	err = t.read(ctx, "list leases", func(c *conn, _ kv.Head) error {
		all = nil
		s, err := c.with(qLeases, t.id)
		if err != nil {
			return err
		}
		defer s.Reset()
		for s.Step() {
			all = append(all, kv.LeaseRecord{ID: s.ColumnInt64(0), TTL: s.ColumnInt64(1), Beat: s.ColumnInt64(2)})
		}
		return s.Err()
	})
	return all, err
}

func (t *table) LeaseKeys(ctx context.Context, id kv.LeaseID) (keys [][]byte, head kv.Head, err error) {
	err = t.read(ctx, "list keys of lease", func(c *conn, h kv.Head) (err error) {
		head = h
		keys, err = c.leaseKeys(t.id, id)
		return err
	})
	return keys, head, err
}

// tx is a table inside Update: it implements kv.Tx on the writer's connection.
type tx struct {
	t    *table
	c    *conn
	head kv.Head
	used *kv.Usage // to be stored with the changes
}

var _ kv.Tx = (*tx)(nil)

func (x *tx) Head() kv.Head { return x.head }

func (x *tx) Load(keys []kv.Lookup) ([]*kv.KeyValue, error) {
	found := make([]*kv.KeyValue, len(keys))
	for i, l := range keys {
		q := qLoad
		if l.WithValue {
			q = qLoadValue
		}
		s, err := x.c.with(q, x.t.id)
		if err != nil {
			return nil, err
		}
		if err := s.BindBlob(2, l.Key); err != nil {
			return nil, err
		}
		if s.Step() && s.ColumnInt64(0) > 0 {
			e := &kv.KeyValue{
				Key:            l.Key,
				Version:        s.ColumnInt64(0),
				ModRevision:    s.ColumnInt64(1),
				CreateRevision: s.ColumnInt64(2),
				Lease:          s.ColumnInt64(3),
			}
			if l.WithValue {
				e.Value = s.ColumnBlob(4, nil)
			}
			found[i] = e
		}
		if err := s.Reset(); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (x *tx) Range(req kv.RangeRequest, wantCount bool) (*kv.RangeResult, error) {
	return x.c.scan(x.t.id, x.head, req, wantCount)
}

var errWriteOrder = errors.New("write: revisions of changes must ascend, above the head and up to the new revision")

func (x *tx) Write(revision kv.Revision, changes []kv.Change) error {
	if len(changes) == 0 {
		return nil
	}
	w := x.t.db.writer
	first, last := w.nextID, x.head.Revision
	add, err := x.c.stmt(qAppend)
	if err != nil {
		return err
	}
	set, err := x.c.stmt(qSetCurrent)
	if err != nil {
		return err
	}
	for i := range changes {
		ch := &changes[i]
		if ch.KV.ModRevision < last || ch.KV.ModRevision == x.head.Revision || ch.KV.ModRevision > revision {
			return errWriteOrder
		}
		last = ch.KV.ModRevision
		// Version 0 marks a deletion.
		e := ch.KV
		if ch.Deleted {
			e = kv.KeyValue{Key: e.Key, ModRevision: e.ModRevision}
		}
		id := first + int64(i)
		if err := bindAll(add, id, x.t.id, e.ModRevision, e.CreateRevision, e.Version, e.Lease, ch.PrevRevision); err != nil {
			return err
		}
		if err := add.BindBlob(8, e.Key); err != nil {
			return err
		}
		if err := bindValue(add, 9, e.Value); err != nil {
			return err
		}
		if err := add.Exec(); err != nil {
			return err
		}
		if err := bindAll(set, x.t.id, id, e.ModRevision, e.CreateRevision, e.Version, e.Lease); err != nil {
			return err
		}
		if err := set.BindBlob(7, e.Key); err != nil {
			return err
		}
		if err := set.Exec(); err != nil {
			return err
		}
	}
	// IDs are not reused if the transaction fails: gaps are harmless.
	w.nextID += int64(len(changes))
	return x.c.segment(x.t.id, last, first, int64(len(changes)), x.used)
}

func (x *tx) Lease(id kv.LeaseID) (*kv.LeaseRecord, error) {
	s, err := x.c.with(qLease, x.t.id, id)
	if err != nil {
		return nil, err
	}
	var l *kv.LeaseRecord
	if s.Step() {
		l = &kv.LeaseRecord{ID: id, TTL: s.ColumnInt64(0), Beat: s.ColumnInt64(1)}
	}
	return l, s.Reset()
}

func (x *tx) PutLease(l kv.LeaseRecord) error {
	return x.c.exec(qPutLease, x.t.id, l.ID, l.TTL, l.Beat)
}

func (x *tx) DeleteLease(id kv.LeaseID) error           { return x.c.exec(qDeleteLease, x.t.id, id) }
func (x *tx) LeaseKeys(id kv.LeaseID) ([][]byte, error) { return x.c.leaseKeys(x.t.id, id) }
