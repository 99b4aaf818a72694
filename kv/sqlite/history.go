package sqlite

import (
	"context"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Historian = (*table)(nil)

// exactCommits is how many commits History adds up; about 20 ms.
const exactCommits = 100_000

// History implements kv.Historian. It adds up what the commits since the last
// compaction have changed: one small row for each commit.
func (t *table) History(ctx context.Context) (out kv.History, err error) {
	err = t.db.read(ctx, "measure history", func(c *conn) error {
		head, done, err := c.snapshot(t.id)
		if err != nil {
			return err
		}
		defer done()
		out = kv.History{Head: head}
		s, err := c.with(qSweepState, t.id)
		if err != nil {
			return err
		}
		var swept, at int64
		if s.Step() {
			swept, at = s.ColumnInt64(1), s.ColumnInt64(2)
		}
		if err := s.Reset(); err != nil {
			return err
		}
		if out.Changes, err = c.changesIn(t.id, head.Compacted, head.Revision, exactCommits); err != nil || swept == head.Compacted {
			return err
		}
		out.Unswept, err = c.changesIn(t.id, at-1, head.Compacted, exactCommits)
		return err
	})
	return out, err
}

// changesIn counts what the commits in after < revision <= upTo have changed. Beyond
// so many commits it takes the distance of their ids instead, which also
// counts other keyspaces' changes meanwhile: with the log of months it would be
// seconds otherwise.
func (c *conn) changesIn(ks int64, after, upTo kv.Revision, exact int64) (n int64, err error) {
	commits, last := int64(0), after
	s, err := c.with(qKept, ks, after, upTo, exact)
	if err != nil {
		return 0, err
	}
	for s.Step() {
		commits++
		last = s.ColumnInt64(0)
		n += s.ColumnInt64(1)
	}
	if err := s.Reset(); err != nil || commits < exact {
		return n, err
	}
	if s, err = c.with(qKeptIDs, ks, last, upTo); err != nil {
		return 0, err
	}
	if s.Step() && s.ColumnType(0) != sqlite3.NULL {
		n += max(s.ColumnInt64(1)-s.ColumnInt64(0), 0)
	}
	return n, s.Reset()
}
