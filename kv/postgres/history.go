package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.HistoryReporter = (*table)(nil)

// History implements kv.HistoryReporter, from three rows. Its head is not compared with the
// known one, because no caller continues from it.
func (t *table) History(ctx context.Context) (out kv.History, err error) {
	err = t.read(ctx, "measure history", statementLimit, func(c *conn) error {
		c.send(qKept, int4(t.id))
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		found := false
		_, err := c.result(func(cols *columns) error {
			found = true
			out = kv.History{Head: kv.Head{Revision: cols.int(), Compacted: cols.int()}}
			next, swept, at := cols.int(), cols.int(), cols.int()
			first := cols.int()
			if first == 0 {
				first = next // there is no commit above the compaction revision
			}
			out.Changes = next - first
			if swept < out.Compacted {
				out.Unswept = max(first-at, 0)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.ready(); err != nil || found {
			return err
		}
		return errNoSweep
	})
	return out, t.ifGone(ctx, err)
}
