package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// Changes implements kv.Table. Rows at or below the compaction revision are returned if
// they still exist.
func (t *table) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) (list []kv.Change, at kv.Head, err error) {
	if t.db.dialect.joins != nil {
		return t.changesByID(ctx, after, upTo, max(limit, 1), withPrev)
	}
	q := qChanges
	if withPrev {
		q = qChangesPrev
	}
	send := func(c *conn) {
		c.send(q, int4(t.id), int8(after), int8(upTo), int8(int64(max(limit, 1)-1)))
	}
	err = t.snapshot(ctx, "read log", send, func(c *conn, h head) error {
		at, list = h.Head, nil
		var last kv.Revision
		var sub int64
		_, err := c.result(func(cols *columns) error {
			ch := readChange(cols, withPrev, h.Compacted)
			if ch.KV.ModRevision != last {
				last, sub = ch.KV.ModRevision, 0
			}
			ch.Sub = sub
			sub++
			list = append(list, ch)
			return nil
		})
		return err
	})
	return list, at, err
}

func readChange(cols *columns, withPrev bool, compacted kv.Revision) (ch kv.Change) {
	ch.KV.ModRevision, ch.KV.Version = cols.int(), cols.int()
	ch.KV.CreateRevision, ch.KV.Lease = cols.int(), cols.int()
	ch.PrevRevision = cols.int()
	ch.KV.Key, ch.KV.Value = cols.keyAndValue()
	ch.Deleted = ch.KV.Version == 0
	// Below the compaction revision a previous value may still exist, or not; returning it
	// would make history depend on the progress of the sweep.
	if !withPrev || ch.PrevRevision == 0 || ch.KV.ModRevision <= compacted {
		return ch
	}
	cols.skip(2) // id, prev_id
	prev := &kv.KeyValue{Key: ch.KV.Key, ModRevision: cols.int(), Version: cols.int(),
		CreateRevision: cols.int(), Lease: cols.int(), Value: cols.bytes()}
	if prev.Version > 0 {
		ch.Prev = prev
	}
	return ch
}
