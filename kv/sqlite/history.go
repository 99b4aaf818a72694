package sqlite

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Historian = (*table)(nil)

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
		if out.Changes, err = c.changesIn(t.id, head.Compacted, head.Revision); err != nil || swept == head.Compacted {
			return err
		}
		out.Unswept, err = c.changesIn(t.id, at-1, head.Compacted)
		return err
	})
	return out, err
}

// changesIn counts what the commits in after < revision <= upTo have changed.
func (c *conn) changesIn(ks int64, after, upTo kv.Revision) (n int64, err error) {
	s, err := c.with(qKept, ks, after, upTo)
	if err != nil {
		return 0, err
	}
	if s.Step() {
		n = s.ColumnInt64(0)
	}
	return n, s.Reset()
}
