package sqlite

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// Sweep implements kv.Table. It reads the log once, up to the compaction revision C. No
// read can need a change that was replaced at or below C, or a deletion below C. So the
// cost depends on the changes since the last compaction, not on the size of the data. Its
// position is stored in the same transaction, so that a crash loses no progress and no row.
func (t *table) Sweep(ctx context.Context, limit int) (more bool, err error) {
	err = t.write(ctx, t.db.writer.chore, func(c *conn, _ kv.Head) (err error) {
		more, err = c.sweep(t.id, limit)
		return err
	})
	return more, err
}

type sweepState struct {
	compacted, swept, rev, id int64
}

type logRow struct {
	id, rev, prev int64
	key           []byte // of a deletion
}

func (c *conn) sweep(ks int64, limit int) (more bool, err error) {
	var at sweepState
	s, err := c.with(qSweepState, ks)
	if err != nil {
		return false, err
	}
	if s.Step() {
		at = sweepState{s.ColumnInt64(0), s.ColumnInt64(1), s.ColumnInt64(2), s.ColumnInt64(3)}
	}
	if err := s.Reset(); err != nil || at.swept == at.compacted {
		return false, err
	}
	rows, next, err := c.sweepRows(ks, at, limit)
	if err != nil {
		return false, err
	}
	for _, r := range rows {
		if r.prev != 0 {
			if err := c.exec(qSweepLog, r.prev); err != nil {
				return false, err
			}
		}
		// The deletion at C itself is kept until the next compaction: a watch may still
		// start at C.
		if r.key == nil || r.rev == at.compacted {
			continue
		}
		if err := c.exec(qSweepLog, r.id); err != nil {
			return false, err
		}
		s, err := c.with(qSweepCurrent, ks, r.id)
		if err != nil {
			return false, err
		}
		if err := s.BindBlob(3, r.key); err != nil {
			return false, err
		}
		if err := s.Exec(); err != nil {
			return false, err
		}
	}
	if next != nil {
		at.rev, at.id = next.rev, next.id
	} else {
		// Start the next sweep at C for the deletions that were kept there.
		at.swept, at.rev, at.id = at.compacted, at.compacted, 0
	}
	if err := c.exec(qSweepSegments, ks, at.rev); err != nil {
		return false, err
	}
	return next != nil, c.exec(qSweepProgress, ks, at.swept, at.rev, at.id)
}

// sweepRows reads the next rows to process, and the one after them if it exists.
func (c *conn) sweepRows(ks int64, at sweepState, limit int) (rows []logRow, next *logRow, err error) {
	s, err := c.with(qSweepRows, ks, at.rev, at.id)
	if err != nil {
		return nil, nil, err
	}
	defer s.Reset()
	for s.Step() {
		r := logRow{id: s.ColumnInt64(0), rev: s.ColumnInt64(1), prev: s.ColumnInt64(3)}
		if r.rev > at.compacted {
			break // here and not in the query, which would read on to the end
		}
		if len(rows) == limit {
			return rows, &r, nil
		}
		if s.ColumnInt64(2) == 0 {
			r.key = s.ColumnBlob(4, nil)
		}
		rows = append(rows, r)
	}
	return rows, nil, s.Err()
}
