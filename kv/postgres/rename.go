package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Renamer = (*DB)(nil)

// Rename implements kv.Renamer. The keyspace keeps its ID. Like a split, it changes head.layout,
// by which all servers notice: their tables end, and none finds the old name again.
func (db *DB) Rename(ctx context.Context, from, to string) error {
	if err := kv.CheckRename(from, to); err != nil {
		return err
	}
	op := fmt.Sprintf("rename keyspace %q to %q", from, to)
	if err := db.writable(op); err != nil {
		return err
	}
	if strings.ContainsRune(from, 0) {
		return fmt.Errorf("%s: %w", op, kv.ErrKeyNotFound) // PostgreSQL has no such text
	}
	r := &rename{mover: mover{db: db, parent: from}, to: to}
	err := db.retry(ctx, "rename keyspace", func(wait context.Context) error {
		return db.with(ctx, wait, db.opts.timeout, func(c *conn) error { return r.try(wait, c) })
	})
	if err != nil && r.sent != 0 {
		err = fmt.Errorf("%w: the answer to COMMIT was lost; rename it again: %w", kv.ErrUnknownOutcome, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	db.endRenamed(r.ids)
	return nil
}

// rename is one Rename.
type rename struct {
	mover
	to  string
	ids []int64 // of the keyspace and its partitions
	// sent is the ID of a keyspace for which COMMIT was sent, and not answered.
	sent int64
}

// try is one transaction. If its answer is lost, the next one finds out: the old name is gone, or
// another keyspace has it.
func (r *rename) try(wait context.Context, c *conn) error {
	m := &r.mover
	m.c, m.err = c, nil
	m.exec(r.db.dialect.begin)
	if r.db.dialect.lockWait != "" {
		m.exec(r.db.dialect.lockWait)
	}
	m.lookUp()
	renamed := false
	switch {
	case r.sent != 0 && (errors.Is(m.err, kv.ErrKeyNotFound) || m.err == nil && m.ks != r.sent):
		m.err = nil
		// A commit, so that it is as durable as the one that was not answered.
		m.exec(fmt.Sprintf(`UPDATE keyspace SET name = name WHERE id = %d`, r.sent))
	case m.err == nil:
		r.ids = []int64{m.ks}
		r.change()
		renamed = true
	}
	if m.err != nil {
		err := m.err
		c.rollback()
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if ok && pgErr.Code == codeDuplicate {
			return final{fmt.Errorf("%q: %w", r.to, kv.ErrKeyspaceExists)} // created a moment ago
		}
		if ok && r.db.dialect.waited(pgErr.Code) {
			r.db.evict(wait, c)
		}
		return err
	}
	if renamed {
		r.sent = m.ks
	}
	c.warning = ""
	if err := c.simple("COMMIT", nil); err != nil {
		pgErr, refused := errors.AsType[*pgconn.PgError](err)
		if refused && !c.broken && !r.db.dialect.unknown(pgErr.Code) {
			r.sent = 0
			return err // nothing has happened
		}
		return c.lost(err)
	}
	if c.warning != "" {
		return c.lost(warned(c.warning))
	}
	r.sent = 0
	return nil
}

// change renames the keyspace whose head is locked, and its partitions.
func (r *rename) change() {
	m := &r.mover
	if _, found := m.integers(`SELECT id FROM keyspace WHERE name = ` + quoteLiteral(r.to)); found {
		m.err = fmt.Errorf("%q: %w", r.to, kv.ErrKeyspaceExists)
		return
	}
	parts, names := m.partitions()
	r.ids = append(r.ids, parts...)
	names = append([]string{m.parent}, names...)
	revisions := []int64{m.at.rev}
	for _, id := range parts {
		if m.err == nil {
			revisions = append(revisions, m.hold(id).rev)
		}
	}
	for i, id := range r.ids {
		m.exec(fmt.Sprintf(`UPDATE keyspace SET name = %s WHERE id = %d`, quoteLiteral(kv.RenamedPartition(names[i], m.parent, r.to)), id))
		m.exec(fmt.Sprintf(`UPDATE head SET layout = layout + 1 WHERE ks = %d`, id))
	}
	for i, rev := range revisions {
		if m.err == nil {
			m.notify(r.ids[i], rev+1)
		}
	}
}

// endRenamed ends the use of this process's tables, so that their engines need not notice.
func (db *DB) endRenamed(ids []int64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for name, t := range db.tables {
		for _, id := range ids {
			if t.ID() == id {
				t.mu.Lock()
				_ = t.repartitioned()
				t.mu.Unlock()
				delete(db.tables, name)
			}
		}
	}
}
