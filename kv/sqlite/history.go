package sqlite

import (
	"context"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.HistoryReporter = (*table)(nil)

// exactCommits is the number of commits that History adds up; about 20 ms.
const exactCommits = 100_000

// History implements kv.HistoryReporter. It adds up the changes of the commits since the
// last compaction: one small row for each commit.
func (t *table) History(ctx context.Context) (out kv.History, err error) {
	err = t.read(ctx, "measure history", func(c *conn, head kv.Head) error {
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

// changesIn counts the changes of the commits in after < revision <= upTo. Beyond the given
// number of commits it uses the distance of their IDs instead, which also counts concurrent
// changes of other keyspaces. With a log of several months it would otherwise take seconds.
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
