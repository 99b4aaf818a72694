package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Splitter = (*DB)(nil)

// splitChunk is the number of rows that one statement of a split or merge moves: SQLite
// holds them in memory, unlike the whole transaction.
const splitChunk = 1000

// Split implements kv.Splitter. The rows are copied, and deleted from the keyspace like a
// client would delete them, so both keyspaces are in a state that ordinary writes could
// have produced.
func (db *DB) Split(ctx context.Context, keyspace, prefix string, opts kv.SplitOptions) (*kv.SplitResult, error) {
	return db.move(ctx, "split", keyspace, prefix, opts, (*mover).split)
}

// Merge implements kv.Splitter.
func (db *DB) Merge(ctx context.Context, keyspace, prefix string, opts kv.SplitOptions) (*kv.SplitResult, error) {
	return db.move(ctx, "merge", keyspace, prefix, opts, (*mover).merge)
}

// mover is one split or merge.
type mover struct {
	ctx            context.Context
	c              *conn
	w              *writer
	opts           kv.SplitOptions
	parent, prefix string
	ks, part       int64 // IDs of the keyspace and of the partition
	rev, partRev   kv.Revision
	span           kv.Span
}

// errDryRun rolls back a dry run.
var errDryRun = errors.New("dry run")

func (db *DB) move(ctx context.Context, op, keyspace, prefix string, opts kv.SplitOptions, run func(*mover) (*kv.SplitResult, error)) (moved *kv.SplitResult, err error) {
	if opts.Step == nil {
		opts.Step = func(string, int64, int64) {}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s keyspace %q at %q: %w", op, keyspace, prefix, err)
		}
	}()
	db.mu.Lock()
	_, parentOpen := db.tables[keyspace]
	_, partOpen := db.tables[kv.PartitionName(keyspace, prefix)]
	db.mu.Unlock()
	if parentOpen || partOpen {
		return nil, fmt.Errorf("%w: it is open in this process: close it and the database first", kv.ErrInUse)
	}
	err = db.writer.alone(ctx, func(c *conn) error {
		m := &mover{ctx: ctx, c: c, w: db.writer, opts: opts, parent: keyspace, prefix: prefix, span: kv.Prefix([]byte(prefix))}
		c.c.SetInterrupt(ctx)
		defer func() {
			c.c.SetInterrupt(context.Background())
			_ = c.c.Exec(`DROP TABLE IF EXISTS temp.moving`)
		}()
		find := c.findKeyspace
		if opts.EmptyOnly {
			find = c.keyspaceID
		}
		if m.ks, err = find(keyspace); err != nil {
			return err
		}
		if m.rev, err = m.headOf(m.ks); err != nil {
			return err
		}
		moved, err = run(m)
		if err == nil && opts.DryRun {
			return errDryRun
		}
		if err == nil {
			opts.Step("commit", 0, 0)
		}
		return err
	})
	if errors.Is(err, errDryRun) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return moved, nil
}

func (m *mover) headOf(ks int64) (kv.Revision, error) {
	head, done, err := m.c.snapshot(ks)
	if err != nil {
		return 0, err
	}
	done()
	return head.Revision, nil
}

// run executes one statement. Of the parameters, ?1 is the keyspace, ?2 the partition, ?3
// and ?4 are the bounds of the prefix, and the rest is args.
func (m *mover) run(sql string, args ...int64) error {
	_, err := m.integer(sql, args...)
	return err
}

// integer executes one statement and returns its first integer.
func (m *mover) integer(sql string, args ...int64) (n int64, err error) {
	s, _, err := m.c.c.Prepare(sql)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	last := s.BindCount()
	for i, v := range append([]int64{m.ks, m.part}, args...) {
		at := i + 1
		if i >= 2 {
			at = i + 3
		}
		if at <= last {
			if err := s.BindInt64(at, v); err != nil {
				return 0, err
			}
		}
	}
	for i, b := range [][]byte{m.span.Start, m.span.End} {
		if at := i + 3; at <= last {
			if err := s.BindBlob(at, b); err != nil {
				return 0, err
			}
		}
	}
	if s.Step() { // a step after the last one would restart
		n = s.ColumnInt64(0)
	}
	return n, s.Err()
}

// choose numbers the rows to move from 1, in the order of their IDs, and so of their
// revisions.
func (m *mover) choose(ks string, where string) (*kv.SplitResult, error) {
	m.opts.Step("count keys", 0, 0)
	if err := m.c.c.Exec(`CREATE TEMP TABLE moving (n INTEGER PRIMARY KEY, id INTEGER NOT NULL)`); err != nil {
		return nil, err
	}
	from := ` FROM current c WHERE c.ks = ` + ks + ` AND c.key >= ?3 AND c.key < ?4 AND c.version > 0` + where
	if err := m.run(`INSERT INTO temp.moving (id) SELECT c.id` + from + ` ORDER BY c.id`); err != nil {
		return nil, err
	}
	moved := &kv.SplitResult{}
	var err error
	if moved.Keys, err = m.integer(`SELECT count(*) FROM temp.moving`); err != nil {
		return nil, err
	}
	moved.Leases, err = m.integer(`SELECT count(DISTINCT nullif(c.lease, 0))` + from)
	return moved, err
}

// each runs a statement for all chosen rows, a chunk at a time: their numbers are above ?5
// and at most ?6; ?7 is the offset for the ID of a new row.
func (m *mover) each(stage string, count int64, sql string, args ...int64) error {
	base := m.w.nextID - 1
	m.opts.Step(stage, 0, count)
	for at := int64(0); at < count; at += splitChunk {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if err := m.run(sql, append([]int64{at, min(at+splitChunk, count), base}, args...)...); err != nil {
			return err
		}
		m.opts.Step(stage, min(at+splitChunk, count), count)
	}
	return nil
}

const chosen = ` FROM temp.moving m CROSS JOIN log l ON l.id = m.id WHERE m.n > ?5 AND m.n <= ?6 ORDER BY m.n`

// appended inserts the rows of current for the rows just appended.
const appended = `REPLACE INTO current (ks, key, id, mod, create_rev, version, lease)
	SELECT ks, key, id, rev, create_rev, version, lease FROM log WHERE id > ?7 + ?5 AND id <= ?7 + ?6`

func (m *mover) split() (*kv.SplitResult, error) {
	existing, err := m.c.partitions(m.parent)
	if err != nil {
		return nil, err
	}
	if err := kv.CheckPartition(m.parent, m.prefix, existing); err != nil {
		return nil, err
	}
	n, err := m.integer(`SELECT count(*) FROM current WHERE ks = ?1 AND key = substr(?3, 1, length(?3) - 1) AND version > 0`)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		return nil, kv.NamingKeyError(m.prefix)
	}
	moved, err := m.choose("?1", "")
	if err != nil {
		return nil, err
	}
	if m.opts.EmptyOnly && moved.Keys > 0 {
		return nil, fmt.Errorf("%w: it has %d keys with this prefix", kv.ErrInvalidRequest, moved.Keys)
	}
	if m.opts.DryRun {
		moved.Revision = m.rev
		return moved, nil
	}
	if m.part, err = m.c.keyspaceID(kv.PartitionName(m.parent, m.prefix)); err != nil {
		return nil, err
	}
	if m.rev == 1 {
		moved.Revision = 1 // nothing was ever written, so no watch can miss anything
		return moved, nil
	}
	// One after the keyspace's head, even if that does not change: a watch from an earlier
	// revision could miss a deletion that is only in the keyspace's log.
	moved.Revision = m.rev + 1
	if err := m.each("copy keys", moved.Keys, `INSERT INTO log (id, ks, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT ?7 + m.n, ?2, l.rev, l.create_rev, l.version, l.lease, 0, 0, l.key, l.value`+chosen); err != nil {
		return nil, err
	}
	if err := m.each("index keys", moved.Keys, appended); err != nil {
		return nil, err
	}
	m.w.nextID += moved.Keys
	if err := errors.Join(
		m.run(`INSERT INTO lease (ks, id, ttl, beat) SELECT ?2, l.id, min(2 * l.ttl + 30, 9000000000), l.beat FROM lease l
			WHERE l.ks = ?1 AND l.id IN (SELECT c.lease FROM current c WHERE c.ks = ?2 AND c.lease <> 0)`),
		m.c.segment(m.part, moved.Revision, m.w.nextID, 0, nil),
		m.c.exec(qCompact, m.part, moved.Revision),
		m.c.exec(qSweepProgress, m.part, moved.Revision, moved.Revision, 0),
	); err != nil {
		return nil, err
	}
	if moved.Keys == 0 {
		return moved, nil
	}
	if err := m.each("delete keys", moved.Keys, `INSERT INTO log (id, ks, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT ?7 + m.n, ?1, ?8, 0, 0, 0, l.id, l.rev, l.key, x''`+chosen, moved.Revision); err != nil {
		return nil, err
	}
	if err := m.each("index keys", moved.Keys, appended); err != nil {
		return nil, err
	}
	return moved, m.segment(moved.Revision, moved.Keys)
}

// segment records rows that were appended to the keyspace's log as a commit.
func (m *mover) segment(rev kv.Revision, rows int64) error {
	first := m.w.nextID
	m.w.nextID += rows
	return m.c.segment(m.ks, rev, first, rows, nil)
}

func (m *mover) merge() (*kv.SplitResult, error) {
	var err error
	if m.part, err = m.c.findKeyspace(kv.PartitionName(m.parent, m.prefix)); err != nil {
		return nil, err
	}
	if m.partRev, err = m.headOf(m.part); err != nil {
		return nil, err
	}
	// A key whose lease has ended counts as deleted: the keyspace has ended the lease, and
	// the partition has not noticed yet.
	moved, err := m.choose("?2", ` AND (c.lease = 0 OR EXISTS (SELECT 1 FROM lease l WHERE l.ks = ?1 AND l.id = c.lease))`)
	if err != nil {
		return nil, err
	}
	moved.Revision = max(m.rev, m.partRev) + 1
	if m.opts.DryRun {
		return moved, nil
	}
	const before = `coalesce((SELECT id FROM current WHERE ks = ?1 AND key = l.key), 0)`
	if err := m.each("copy keys", moved.Keys, `INSERT INTO log (id, ks, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
		SELECT ?7 + m.n, ?1, ?8, ?8, 1, l.lease, `+before+`, 0, l.key, l.value`+chosen, moved.Revision); err != nil {
		return nil, err
	}
	if err := m.each("index keys", moved.Keys, appended); err != nil {
		return nil, err
	}
	rows := moved.Keys
	if rows == 0 {
		// The revision is needed even without keys: clients may know higher revisions than
		// the keyspace's.
		rows = 2
		if err := errors.Join(
			m.run(`INSERT INTO log (id, ks, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
				SELECT ?5, ?1, ?6, ?6, 1, 0, coalesce((SELECT id FROM current WHERE ks = ?1 AND key = ?3), 0), 0, ?3, x''`, m.w.nextID, moved.Revision),
			m.run(`INSERT INTO log (id, ks, rev, create_rev, version, lease, prev_id, prev_rev, key, value)
				SELECT ?5 + 1, ?1, ?6, 0, 0, 0, ?5, ?6, ?3, x''`, m.w.nextID, moved.Revision),
			m.run(`REPLACE INTO current (ks, key, id, mod, create_rev, version, lease) SELECT ?1, ?3, ?5 + 1, ?6, 0, 0, 0`, m.w.nextID, moved.Revision),
		); err != nil {
			return nil, err
		}
	}
	m.opts.Step("remove the partition", 0, 0)
	return moved, errors.Join(
		m.segment(moved.Revision, rows),
		m.c.exec(qCompact, m.ks, moved.Revision),
		m.run(`DELETE FROM log WHERE ks = ?2`),
		m.run(`DELETE FROM current WHERE ks = ?2`),
		m.run(`DELETE FROM segment WHERE ks = ?2`),
		m.run(`DELETE FROM lease WHERE ks = ?2`),
		m.run(`DELETE FROM keyspace WHERE id = ?2`),
	)
}
