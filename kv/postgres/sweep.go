package postgres

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// Sweep implements kv.Table. It reads the log once, up to the compaction revision C. No
// read can need a change that was replaced at or below C, or a deletion below C. So the
// cost depends on the changes since the last compaction, not on the size of the data. Its
// position is stored in the same transaction. That need not be durable: after a crash, lost
// steps are repeated.
//
// It locks no row that writers wait for, except those of deleted keys. Concurrent sweeps of
// several servers take turns.
func (t *table) Sweep(ctx context.Context, limit int) (more bool, err error) {
	if err := t.writable("sweep"); err != nil {
		return false, err
	}
	err = t.read(ctx, "sweep", statementLimit, func(c *conn) error {
		more, err = t.sweep(c, limit)
		return err
	})
	return more, t.ifGone(ctx, err)
}

// errNoSweep never leaves the package: the keyspace has no row in sweep, which a drop removes.
var errNoSweep = errors.New("the keyspace has no row in sweep")

// ifGone replaces errNoSweep by the reason: the keyspace's head shows whether it was
// dropped, and these reads do not include it.
func (t *table) ifGone(ctx context.Context, err error) error {
	if errors.Is(err, errNoSweep) {
		_, err = t.Head(ctx)
	}
	return err
}

// sweepStep is one step: the rows to remove, and the position of the next step.
type sweepStep struct {
	compacted, swept, head kv.Revision
	garbage                []int64 // log ids
	dead                   []deadKey
	next                   int64       // log ID to continue at, 0 if all is done
	nextRev                kv.Revision // its revision
}

// deadKey is a deleted key, and the log ID of its deletion.
type deadKey struct {
	key []byte
	id  int64
}

// sweep takes two round trips: read the next rows, and remove them. Where rows are on other
// nodes it takes one more, to specify the row to continue at: a plan that has to find it
// might read from the first row.
func (t *table) sweep(c *conn, limit int) (more bool, err error) {
	begun := 1
	c.send(qBeginSweep)
	if t.db.dialect.async != "" {
		c.send(qAsync)
		begun++
	}
	c.send(qSweepState, int4(t.id))
	apart := t.db.dialect.joins != nil
	if !apart {
		c.send(qSweepRows, int4(t.id), int8(int64(limit)+1))
	}
	c.sync()
	if err := c.flush(); err != nil {
		return false, err
	}
	if err := c.results(begun); err != nil {
		return false, err
	}
	s := &sweepStep{}
	var from int64
	found := false
	_, err = c.result(func(cols *columns) error {
		found = true
		s.swept, s.head, s.compacted = cols.int(), cols.int(), cols.int()
		if apart {
			from = cols.int()
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if apart {
		if err := c.ready(); err != nil {
			return false, err
		}
		c.send(qSweepRows, int4(t.id), int8(from), int8(int64(limit)+1))
		c.sync()
		if err := c.flush(); err != nil {
			return false, err
		}
	}
	if err := s.judge(c, limit); err != nil {
		return false, err
	}
	if err := c.ready(); err != nil {
		return false, err
	}
	if s.swept >= s.compacted {
		c.rollback()
		if !found {
			return false, errNoSweep
		}
		return false, nil
	}
	return s.next != 0, t.remove(c, s, limit)
}

// judge reads the next rows of the log and decides which to remove.
func (s *sweepStep) judge(c *conn, limit int) error {
	n, done := 0, false
	_, err := c.result(func(cols *columns) error {
		id, rev, version, prev := cols.int(), cols.int(), cols.int(), cols.int()
		n++
		switch {
		case done || rev > s.compacted:
			done = true
		case n > limit:
			s.next, s.nextRev = id, rev
		default:
			if prev != 0 {
				s.garbage = append(s.garbage, prev)
			}
			// The deletion at C itself is kept until the next compaction: a watch may still
			// start at C.
			if version == 0 && rev < s.compacted {
				s.garbage = append(s.garbage, id)
				s.dead = append(s.dead, deadKey{cols.bytes(), id})
			}
		}
		return nil
	})
	return err
}

func (t *table) remove(c *conn, s *sweepStep, limit int) error {
	statements := 3
	if len(s.garbage) > 0 {
		c.send(qSweepLog, int4(t.id), int8s(len(s.garbage), func(i int) int64 { return s.garbage[i] }))
		statements++
	}
	if n := len(s.dead); n > 0 {
		// In the order in which updates lock them.
		slices.SortFunc(s.dead, func(a, b deadKey) int { return bytes.Compare(a.key, b.key) })
		c.send(qSweepCurrent, int4(t.id), blobs(n, func(i int) []byte { return s.dead[i].key }),
			int8s(n, func(i int) int64 { return s.dead[i].id }))
		statements++
	}
	swept, next, rev := s.compacted, []byte(nil), s.compacted
	if s.next != 0 {
		swept, next, rev = s.swept, int8(s.next), s.nextRev
	}
	c.send(qSweepProgress, int4(t.id), int8(swept), next)
	c.send(qSweepSegments, int4(t.id), int8(min(rev, s.head-keepCommits)), int8(int64(limit)))
	c.send(qCommit)
	c.sync()
	if err := c.flush(); err != nil {
		return err
	}
	if err := c.results(statements); err != nil {
		return err
	}
	return c.ready()
}
