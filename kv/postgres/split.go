package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// Splits and merges move rows from one keyspace to another inside the database. They use
// one transaction that locks the head of the parent keyspace, so there are no concurrent
// writes to either. It increments head.layout, which is read with every head, in the same
// statement or snapshot as the other data. A table that finds a different number than at
// first discards the data and is no longer used. So no server writes a moved key to the old
// keyspace, or delivers the deletions there to watches of the keys.

var _ kv.Splitter = (*DB)(nil)

// repartitioned ends the use of a table. The caller holds t.mu.
func (t *table) repartitioned() error {
	if !t.ended {
		t.behind = fmt.Errorf("keyspace %q: database %s: %w", t.name, t.db.where, kv.ErrRepartitioned)
		t.ended = true
		close(t.fell)
	}
	return t.behind
}

// Split implements kv.Splitter.
func (db *DB) Split(ctx context.Context, keyspace, prefix string, opts kv.SplitOptions) (*kv.SplitResult, error) {
	return db.move(ctx, "split", keyspace, prefix, opts, (*mover).split)
}

// Merge implements kv.Splitter.
func (db *DB) Merge(ctx context.Context, keyspace, prefix string, opts kv.SplitOptions) (*kv.SplitResult, error) {
	return db.move(ctx, "merge", keyspace, prefix, opts, (*mover).merge)
}

// mover is one split or merge.
type mover struct {
	db     *DB
	c      *conn
	opts   kv.SplitOptions
	parent string
	prefix string
	// ks is the keyspace's ID, part the partition's.
	ks, part int64
	at       place // of the keyspace
	// keys is a condition on rows of current (c) that selects the keys of the prefix.
	keys string
	err  error // the first error
}

// place is the current state of a keyspace's head row.
type place struct{ rev, compacted, nextID int64 }

// move runs a split or merge in a transaction. It may take long, so it is retried only
// until it has the head's lock.
func (db *DB) move(ctx context.Context, op, keyspace, prefix string, opts kv.SplitOptions, run func(*mover) (*kv.SplitResult, error)) (moved *kv.SplitResult, err error) {
	wrap := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%s keyspace %q at %q: %w", op, keyspace, prefix, db.fail(ctx, op, err))
	}
	if opts.Step == nil {
		opts.Step = func(string, int64, int64) {}
	}
	if opts.EmptyOnly {
		if _, err := db.Open(ctx, keyspace); err != nil {
			return nil, err
		}
	}
	span := kv.Prefix([]byte(prefix))
	m := &mover{db: db, opts: opts, parent: keyspace, prefix: prefix,
		keys: "c.key >= " + bytesLiteral(span.Start) + " AND c.key < " + bytesLiteral(span.End)}
	err = db.retry(ctx, op, func(wait context.Context) error {
		return db.with(ctx, wait, checkLimit, func(c *conn) error {
			defer func() { c.broken = true }() // its settings differ from the other connections'
			m.c, m.err = c, nil
			m.begin()
			if m.err != nil {
				c.rollback()
				if pgErr, ok := errors.AsType[*pgconn.PgError](m.err); ok && pgErr.Code == codeLockTimeout {
					db.evict(wait, c)
				}
				return m.err
			}
			result, err := run(m)
			if err != nil || opts.DryRun {
				moved = result
				return final{err}.orNil()
			}
			opts.Step("commit", 0, 0)
			if err := c.simple("COMMIT", nil); err != nil {
				return final{fmt.Errorf("%w: the answer to COMMIT was lost (%w): check with atoll kv status whether the partition exists", kv.ErrUnknownOutcome, err)}
			}
			moved = result
			return nil
		})
	})
	if f, ok := errors.AsType[final](err); ok {
		err = f.error
	}
	if err != nil {
		return nil, wrap(err)
	}
	return moved, nil
}

// final is an error that must not be retried.
type final struct{ error }

func (f final) orNil() error {
	if f.error == nil {
		return nil
	}
	return f
}

// exec runs SQL; after the first error it does nothing.
func (m *mover) exec(sql string) { m.rows(sql, nil) }

func (m *mover) rows(sql string, row func(cols []string)) {
	if m.err != nil {
		return
	}
	m.err = m.c.simple(sql, func(cols [][]byte) {
		if row != nil {
			text := make([]string, len(cols))
			for i, col := range cols {
				text[i] = string(col)
			}
			row(text)
		}
	})
}

// integers reads one row of integers.
func (m *mover) integers(sql string) (n []int64, found bool) {
	m.rows(sql, func(cols []string) {
		found = true
		for _, col := range cols {
			v, err := strconv.ParseInt(col, 10, 64)
			if err != nil && m.err == nil {
				m.err = err
			}
			n = append(n, v)
		}
	})
	return n, found && m.err == nil
}

// begin starts the transaction with the keyspace's head locked. Its statements use the
// planner's own plans, without a time limit.
func (m *mover) begin() {
	m.exec(m.db.dialect.begin)
	for _, text := range m.db.dialect.forCheck {
		m.exec(text)
	}
	m.lookUp()
}

// lookUp finds the keyspace and locks its head.
func (m *mover) lookUp() {
	id, found := m.integers(`SELECT id FROM keyspace WHERE name = ` + quoteLiteral(m.parent))
	if m.err == nil && !found {
		m.err = kv.ErrKeyNotFound
		return
	}
	if m.err != nil {
		return
	}
	m.ks = id[0]
	m.at = m.hold(m.ks)
}

// hold reads a head and locks it against other writers.
func (m *mover) hold(ks int64) (at place) {
	n, found := m.integers(fmt.Sprintf(`SELECT rev, compacted, next_id, layout FROM head h WHERE ks = %d %s`, ks, m.db.dialect.lock))
	if found && n[3] != droppedLayout {
		return place{n[0], n[1], n[2]}
	}
	if m.err == nil && found {
		m.err = kv.ErrKeyNotFound // it was dropped while this waited for the lock
	}
	if m.err == nil {
		m.err = fmt.Errorf("keyspace %d has no head: %w", ks, kv.ErrKeyNotFound)
	}
	return at
}

// moving selects the existing rows of a prefix, in the order of their revisions: n numbers
// them from 1.
func (m *mover) moving(ks int64, order string) string {
	return fmt.Sprintf(`(SELECT c.*, row_number() OVER (ORDER BY c.%s) AS n FROM current c
		WHERE c.ks = %d AND %s AND c.version > 0)`, order, ks, m.keys)
}

func (m *mover) count(ks int64) *kv.SplitResult {
	moved := &kv.SplitResult{Revision: m.at.rev}
	if n, found := m.integers(`SELECT count(*), count(DISTINCT nullif(c.lease, 0)) FROM ` + m.moving(ks, "id") + ` c`); found {
		moved.Keys, moved.Leases = n[0], n[1]
	}
	return moved
}

func (m *mover) split() (*kv.SplitResult, error) {
	_, names := m.partitions()
	if m.err != nil {
		return nil, m.err
	}
	if err := kv.CheckPartition(m.parent, m.prefix, kv.PartitionPrefixes(m.parent, names)); err != nil {
		return nil, err
	}
	m.opts.Step("count keys", 0, 0)
	naming, _ := m.integers(fmt.Sprintf(`SELECT 1 FROM current WHERE ks = %d AND key = %s AND version > 0`,
		m.ks, bytesLiteral([]byte(strings.TrimSuffix(m.prefix, "/")))))
	if len(naming) > 0 {
		return nil, kv.NamingKeyError(m.prefix)
	}
	moved := m.count(m.ks)
	if m.err != nil || m.opts.DryRun {
		return moved, m.err
	}
	if m.opts.EmptyOnly && moved.Keys > 0 {
		return nil, fmt.Errorf("%w: it has %d keys with this prefix", kv.ErrInvalidRequest, moved.Keys)
	}
	token := randomLiteral()
	id, _ := m.integers(`INSERT INTO keyspace (name, origin) VALUES (` +
		quoteLiteral(kv.PartitionName(m.parent, m.prefix)) + `, ` + token + `) RETURNING id`)
	if m.err != nil {
		return nil, m.err
	}
	m.part = id[0]
	// One after the keyspace's head, even if that does not change: a watch from an earlier
	// revision could miss a deletion that is only in the keyspace's log.
	moved.Revision = m.at.rev + 1
	compacted := moved.Revision
	if m.at.rev == 1 {
		moved.Revision, compacted = 1, 0 // nothing was ever written, so no watch can miss anything
	}
	m.opts.Step("copy keys", 0, 0)
	m.exec(fmt.Sprintf(`INSERT INTO log (ks, id, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT %d, c.n, l.rev, l.create_rev, l.version, l.lease, 0, 0, l.key, l.value
		FROM %s c JOIN log l ON l.ks = %d AND l.id = c.id`, m.part, m.moving(m.ks, "id"), m.ks))
	m.exec(fmt.Sprintf(`INSERT INTO current (ks, id, mod, create_rev, version, lease, key)
		SELECT ks, id, rev, create_rev, version, lease, key FROM log WHERE ks = %d`, m.part))
	m.exec(fmt.Sprintf(`INSERT INTO lease (ks, id, ttl, beat) SELECT %d, l.id, least(2 * l.ttl + 30, 9000000000), l.beat FROM lease l
		WHERE l.ks = %d AND l.id IN (SELECT c.lease FROM current c WHERE c.ks = %d AND c.lease <> 0)`, m.part, m.ks, m.part))
	if compacted > 0 {
		m.exec(fmt.Sprintf(`INSERT INTO segment (ks, rev, sub, n, id, token) VALUES (%d, %d, 0, 0, %d, %s)`, m.part, moved.Revision, moved.Keys+1, token))
	}
	m.exec(fmt.Sprintf(`INSERT INTO sweep (ks, swept, id) VALUES (%d, %d, %d)`, m.part, compacted, moved.Keys+1))
	m.exec(fmt.Sprintf(`INSERT INTO head (ks, rev, sub, compacted, next_id, fence, token) VALUES (%d, %d, 0, %d, %d, 0, %s)`,
		m.part, moved.Revision, compacted, moved.Keys+1, token))
	if moved.Keys > 0 {
		m.opts.Step("delete keys", 0, 0)
		m.exec(fmt.Sprintf(`INSERT INTO log (ks, id, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
			SELECT %d, %d + c.n, %d, 0, 0, 0, c.id, c.mod, c.key, '' FROM %s c`, m.ks, m.at.nextID-1, moved.Revision, m.moving(m.ks, "key")))
		m.exec(fmt.Sprintf(`UPDATE current c SET id = l.id, mod = l.rev, create_rev = 0, version = 0, lease = 0
			FROM log l WHERE l.ks = %d AND l.id >= %d AND c.ks = %d AND c.key = l.key`, m.ks, m.at.nextID, m.ks))
		m.advance(moved.Revision, moved.Keys)
	}
	m.changeLayout(moved.Revision)
	return moved, m.err
}

func (m *mover) merge() (*kv.SplitResult, error) {
	id, found := m.integers(`SELECT id FROM keyspace WHERE name = ` + quoteLiteral(kv.PartitionName(m.parent, m.prefix)))
	if !found {
		return nil, errors.Join(m.err, kv.ErrKeyNotFound)
	}
	m.part = id[0]
	at := m.hold(m.part)
	m.opts.Step("count keys", 0, 0)
	// A key whose lease has ended counts as deleted: the keyspace has ended the lease, and
	// the partition has not noticed yet.
	m.keys += fmt.Sprintf(` AND (c.lease = 0 OR EXISTS (SELECT 1 FROM lease l WHERE l.ks = %d AND l.id = c.lease))`, m.ks)
	moved := m.count(m.part)
	moved.Revision = max(m.at.rev, at.rev) + 1
	if m.err != nil || m.opts.DryRun {
		return moved, m.err
	}
	m.opts.Step("copy keys", 0, 0)
	added := moved.Keys
	m.exec(fmt.Sprintf(`INSERT INTO log (ks, id, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT %[1]d, %[2]d + c.n, %[3]d, %[3]d, 1, l.lease, coalesce(old.id, 0), 0, l.key, l.value
		FROM %[4]s c JOIN log l ON l.ks = %[5]d AND l.id = c.id LEFT JOIN current old ON old.ks = %[1]d AND old.key = c.key`,
		m.ks, m.at.nextID-1, moved.Revision, m.moving(m.part, "key"), m.part))
	if moved.Keys == 0 {
		// The revision is needed even without keys: clients may know higher revisions than
		// the keyspace's.
		key := bytesLiteral([]byte(m.prefix))
		m.exec(fmt.Sprintf(`INSERT INTO log (ks, id, rev, create_rev, version, lease, prev_id, prev_rev, key, value) VALUES
			(%[1]d, %[2]d, %[3]d, %[3]d, 1, 0, coalesce((SELECT id FROM current WHERE ks = %[1]d AND key = %[4]s), 0), 0, %[4]s, ''),
			(%[1]d, %[2]d + 1, %[3]d, 0, 0, 0, %[2]d, %[3]d, %[4]s, '')`, m.ks, m.at.nextID, moved.Revision, key))
		added = 2
	}
	m.exec(fmt.Sprintf(`INSERT INTO current (ks, id, mod, create_rev, version, lease, key)
		SELECT l.ks, l.id, l.rev, l.create_rev, l.version, l.lease, l.key FROM log l WHERE l.ks = %d AND l.id >= %d
		ON CONFLICT (ks, key) DO UPDATE SET id = excluded.id, mod = excluded.mod, create_rev = excluded.create_rev,
			version = excluded.version, lease = excluded.lease`, m.ks, m.at.nextID+added-max(moved.Keys, 1)))
	m.advance(moved.Revision, added)
	m.exec(fmt.Sprintf(`UPDATE head SET compacted = %d WHERE ks = %d`, moved.Revision, m.ks))
	m.opts.Step("remove the partition", 0, 0)
	for _, table := range []string{"head", "sweep", "lease", "segment", "current", "log"} {
		m.exec(fmt.Sprintf(`DELETE FROM %s WHERE ks = %d`, table, m.part))
	}
	m.exec(fmt.Sprintf(`DELETE FROM keyspace WHERE id = %d`, m.part))
	m.changeLayout(moved.Revision)
	return moved, m.err
}

// advance advances the keyspace's head over rows that were appended to its log.
func (m *mover) advance(rev, rows int64) {
	token := randomLiteral()
	m.exec(fmt.Sprintf(`INSERT INTO segment (ks, rev, sub, n, id, token) VALUES (%d, %d, 0, %d, %d, %s)`, m.ks, rev, rows, m.at.nextID, token))
	m.exec(fmt.Sprintf(`UPDATE head SET rev = %d, sub = 0, next_id = %d, token = %s WHERE ks = %d`, rev, m.at.nextID+rows, token, m.ks))
}

// changeLayout makes every server notice: at once, if the database can notify.
func (m *mover) changeLayout(rev int64) {
	m.exec(fmt.Sprintf(`UPDATE head SET layout = layout + 1 WHERE ks = %d`, m.ks))
	m.notify(m.ks, rev)
}

// notify tells servers of a revision that they do not know, so that they read the head.
func (m *mover) notify(ks, rev int64) {
	if m.db.dialect.notify {
		m.exec(`SELECT pg_notify(` + quoteLiteral(m.db.opts.schema) + `, ` + quoteLiteral(string(notice(int32(ks), rev))) + `)`)
	}
}

// partitions returns the IDs and names of the keyspace's partitions.
func (m *mover) partitions() (ids []int64, names []string) {
	from, to := kv.PartitionNames(m.parent)
	m.rows(`SELECT id, name FROM keyspace WHERE name >= `+quoteLiteral(from)+` AND name < `+quoteLiteral(to)+` ORDER BY name`, func(cols []string) {
		id, err := strconv.ParseInt(cols[0], 10, 64)
		if err != nil && m.err == nil {
			m.err = err
		}
		ids, names = append(ids, id), append(names, cols[1])
	})
	return ids, names
}

func bytesLiteral(b []byte) string { return `'\x` + hex.EncodeToString(b) + `'::bytea` }

func randomLiteral() string {
	b := make([]byte, tokenSize)
	rand.Read(b)
	return bytesLiteral(b)
}
