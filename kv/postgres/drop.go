package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// A drop costs users of other keyspaces nothing, and those of the keyspace no statement: it
// sets head.layout, which is read with every head, in the same snapshot as the data and
// under the lock of every commit.

var _ kv.Dropper = (*DB)(nil)

// droppedLayout is the layout of a dropped keyspace.
const droppedLayout = -1

// dropped ends the use of a table whose keyspace was dropped. The caller holds t.mu.
func (t *table) dropped() error {
	if !t.ended {
		t.behind = fmt.Errorf("keyspace %q: database %s: %w", t.name, t.db.where, kv.ErrDropped)
		t.ended = true
		close(t.fell)
		go t.db.forget(t) // it locks db.mu, which is locked before t.mu
	}
	return t.behind
}

// forget removes an ended table from those that Open returns.
func (db *DB) forget(t *table) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.tables[t.name] == t {
		delete(db.tables, t.name)
	}
}

// Drop implements kv.Dropper. Its transaction locks the heads of the keyspace and of its
// partitions, as writers do, so that each of their commits is before it or fails.
func (db *DB) Drop(ctx context.Context, keyspace string) error {
	if err := kv.CheckDrop(keyspace); err != nil {
		return err
	}
	if err := db.writable("drop keyspace " + fmt.Sprintf("%q", keyspace)); err != nil {
		return err
	}
	if strings.ContainsRune(keyspace, 0) {
		return fmt.Errorf("drop keyspace %q: %w", keyspace, kv.ErrKeyNotFound) // PostgreSQL has no such text
	}
	d := &drop{mover: mover{db: db, parent: keyspace}}
	err := db.retry(ctx, "drop keyspace", func(wait context.Context) error {
		return db.with(ctx, wait, db.opts.timeout, func(c *conn) error { return d.try(wait, c) })
	})
	if err != nil && d.sent != 0 {
		err = fmt.Errorf("%w: the answer to COMMIT was lost; drop it again: %w", kv.ErrUnknownOutcome, err)
	}
	if err != nil {
		return fmt.Errorf("drop keyspace %q: %w", keyspace, err)
	}
	db.endDropped(d.ids)
	return nil
}

// drop is one Drop.
type drop struct {
	mover
	ids []int64 // of the keyspace and its partitions
	// sent is the ID of a keyspace for which COMMIT was sent, and not answered.
	sent int64
}

// try is one transaction. If its answer is lost, the next one finds out: the name is gone, or
// another keyspace has it.
func (d *drop) try(wait context.Context, c *conn) error {
	m := &d.mover
	m.c, m.err = c, nil
	m.exec(d.db.dialect.begin)
	if d.db.dialect.lockWait != "" {
		m.exec(d.db.dialect.lockWait)
	}
	m.lookUp()
	marked := false
	switch {
	case d.sent != 0 && (errors.Is(m.err, kv.ErrKeyNotFound) || m.err == nil && m.ks != d.sent):
		m.err = nil
		// A commit, so that it is as durable as the one that was not answered.
		m.exec(fmt.Sprintf(`UPDATE dropped SET since = since WHERE ks = %d`, d.sent))
	case m.err == nil:
		d.ids = []int64{m.ks}
		d.mark()
		marked = true
	}
	if m.err != nil {
		err := m.err
		c.rollback()
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && d.db.dialect.waited(pgErr.Code) {
			d.db.evict(wait, c)
		}
		return err
	}
	if marked {
		d.sent = m.ks
	}
	c.warning = ""
	if err := c.simple("COMMIT", nil); err != nil {
		pgErr, refused := errors.AsType[*pgconn.PgError](err)
		if refused && !c.broken && !d.db.dialect.unknown(pgErr.Code) {
			d.sent = 0
			return err // nothing has happened
		}
		return c.lost(err)
	}
	if c.warning != "" {
		return c.lost(warned(c.warning))
	}
	d.sent = 0
	return nil
}

// mark drops the keyspace whose head is locked, and its partitions.
func (d *drop) mark() {
	m := &d.mover
	parts, _ := m.partitions()
	d.ids = append(d.ids, parts...)
	revisions := []int64{m.at.rev}
	for _, id := range parts {
		if m.err == nil {
			revisions = append(revisions, m.hold(id).rev)
		}
	}
	all := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(d.ids)), ", "), "[]")
	m.exec(`INSERT INTO dropped (ks, origin, since, stage, place) SELECT k.id, k.origin, now(), 0, '' FROM keyspace k WHERE k.id IN (` + all + `)`)
	m.exec(fmt.Sprintf(`UPDATE head SET layout = %d WHERE ks IN (%s)`, droppedLayout, all))
	// A sweep does not read the head's layout: without this row it finds out.
	m.exec(`DELETE FROM sweep WHERE ks IN (` + all + `)`)
	m.exec(`DELETE FROM keyspace WHERE id IN (` + all + `)`)
	for i, rev := range revisions {
		if m.err == nil {
			m.notify(d.ids[i], rev+1)
		}
	}
}

// endDropped ends the use of this process's tables, so that their engines need not notice.
func (db *DB) endDropped(ids []int64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for name, t := range db.tables {
		for _, id := range ids {
			if t.ID() == id {
				t.mu.Lock()
				_ = t.dropped()
				t.mu.Unlock()
				delete(db.tables, name)
			}
		}
	}
}
