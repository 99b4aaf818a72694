package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Dropper = (*DB)(nil)

// Drop implements kv.Dropper. It moves the IDs of the keyspace and its partitions from the
// table of keyspaces to that of dropped ones. Every access reads the keyspace's row first,
// in the same snapshot or transaction as the rest, and finds none.
func (db *DB) Drop(ctx context.Context, keyspace string) error {
	if err := kv.CheckDrop(keyspace); err != nil {
		return err
	}
	db.mu.Lock() // so that Open returns no table that is about to be dropped
	err := db.writer.do(ctx, func(c *conn) error { return c.drop(keyspace) })
	var ended []*table
	// Not found: an earlier Drop with an unknown outcome may have dropped it.
	if err == nil || errors.Is(err, kv.ErrKeyNotFound) {
		ended = db.forget(keyspace)
	}
	db.mu.Unlock()
	for _, t := range ended {
		t.end.now(t.named(kv.ErrDropped))
	}
	if err != nil {
		return fmt.Errorf("drop keyspace %q: %w", keyspace, err)
	}
	return nil
}

func (c *conn) drop(keyspace string) error {
	id, err := c.findKeyspace(keyspace)
	if err != nil {
		return err
	}
	from, to := kv.PartitionNames(keyspace)
	for _, q := range []query{qDropMark, qDropRows} {
		s, err := c.stmt(q)
		if err != nil {
			return err
		}
		if err := errors.Join(s.BindText(1, from), s.BindText(2, to), s.BindInt64(3, id)); err != nil {
			return err
		}
		if err := s.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a keyspace and its partitions from the open ones, and returns them. The
// caller holds db.mu.
func (db *DB) forget(keyspace string) (forgotten []*table) {
	for name, t := range db.tables {
		if isPartOf(name, keyspace) {
			forgotten = append(forgotten, t)
			delete(db.tables, name)
		}
	}
	return forgotten
}

// named adds the keyspace to an ErrDropped or ErrRenamed.
func (t *table) named(err error) error {
	if errors.Is(err, kv.ErrRenamed) {
		return fmt.Errorf("keyspace %q: database %s: %w", t.name, t.db.path, kv.ErrRenamed)
	}
	if errors.Is(err, kv.ErrDropped) {
		return fmt.Errorf("keyspace %q: database %s: %w", t.name, t.db.path, kv.ErrDropped)
	}
	return err
}

// ending calls the engines of a keyspace when it is dropped.
type ending struct {
	mu    sync.Mutex
	err   error // set when it was dropped
	last  int
	calls map[int]func(error)
}

// OnDrop implements kv.DropNotifier.
func (t *table) OnDrop(dropped func(error)) (stop func()) {
	e := &t.end
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		dropped(e.err)
		return func() {}
	}
	if e.calls == nil {
		e.calls = map[int]func(error){}
	}
	e.last++
	n := e.last
	e.calls[n] = dropped
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.calls, n)
	}
}

func (e *ending) now(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return
	}
	e.err = err
	for _, dropped := range e.calls {
		dropped(err)
	}
	e.calls = nil
}

// Purge implements kv.Dropper. Like a sweep, each step shares the commit of an update. The
// rows of a dropped keyspace change only here, so the rows that are left say where to
// continue.
func (db *DB) Purge(ctx context.Context, limit int) (more bool, err error) {
	err = db.writer.chore(ctx, func(c *conn) (err error) {
		more, err = c.purge(int64(max(limit, 1)))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("purge dropped keyspaces: %w", err)
	}
	return more, nil
}

// purge removes rows until none of the limit is left, or no dropped keyspace.
func (c *conn) purge(limit int64) (more bool, err error) {
	for left := limit; ; {
		ks, found, err := c.integer(qPurgeNext)
		if err != nil || !found {
			return false, err
		}
		for _, remove := range []func(ks, left int64) (removed int64, err error){c.purgeKeys, c.purgeSegments, c.purgeLeases} {
			n, err := remove(ks, left)
			if err != nil {
				return false, err
			}
			if left -= n; left <= 0 {
				return true, nil
			}
		}
		if err := c.exec(qPurgeDone, ks); err != nil {
			return false, err
		}
		left--
		if left <= 0 {
			_, more, err = c.integer(qPurgeNext)
			return more, err
		}
	}
}

// purgeKeys removes keys with their changes. The log has no index by keyspace; but each
// change leads to the one of the same key before it, beginning with the newest. Sweep
// removes the oldest ones first, so none is left behind a gap.
func (c *conn) purgeKeys(ks, left int64) (removed int64, err error) {
	for removed < left {
		key, id, found, err := c.firstKey(ks)
		if err != nil || !found {
			return removed, err
		}
		for found && id != 0 && removed < left {
			if id, found, err = c.integer(qPurgeLog, id, ks); err != nil {
				return removed, err
			}
			if found {
				removed++
			}
		}
		q := qPurgeRest // the next step goes on with this change
		if removed < left {
			q = qPurgeCurrent
			removed++
		}
		s, err := c.with(q, ks)
		if err != nil {
			return removed, err
		}
		if err := bindValue(s, 2, key); err != nil {
			return removed, err
		}
		if q == qPurgeRest {
			if err := s.BindInt64(3, id); err != nil {
				return removed, err
			}
		}
		if err := s.Exec(); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// firstKey returns the first key of a keyspace, and the ID of its newest change.
func (c *conn) firstKey(ks int64) (key []byte, id int64, found bool, err error) {
	s, err := c.with(qPurgeKey, ks)
	if err != nil {
		return nil, 0, false, err
	}
	if s.Step() {
		key, id, found = s.ColumnBlob(0, nil), s.ColumnInt64(1), true
	}
	return key, id, found, s.Reset()
}

func (c *conn) purgeSegments(ks, left int64) (int64, error) {
	return c.remove(qPurgeSegments, ks, left)
}

func (c *conn) purgeLeases(ks, left int64) (int64, error) { return c.remove(qPurgeLeases, ks, left) }

// remove runs a query that removes rows, and counts them.
func (c *conn) remove(q query, args ...int64) (int64, error) {
	if err := c.exec(q, args...); err != nil {
		return 0, err
	}
	return c.c.Changes(), nil
}

// integer returns the first column of a query's first row.
func (c *conn) integer(q query, args ...int64) (n int64, found bool, err error) {
	s, err := c.with(q, args...)
	if err != nil {
		return 0, false, err
	}
	if s.Step() {
		n, found = s.ColumnInt64(0), true
	}
	return n, found, s.Reset()
}
