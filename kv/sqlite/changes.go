package sqlite

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// Changes implements kv.Table. Rows at or below the compaction revision are returned if
// they still exist.
func (t *table) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) (list []kv.Change, head kv.Head, err error) {
	err = t.read(ctx, "read log", func(c *conn, h kv.Head) (err error) {
		head = h
		list, err = c.changes(t.id, h, after, min(upTo, h.Revision), limit, withPrev)
		return err
	})
	return list, head, err
}

func (c *conn) changes(ks int64, head kv.Head, after, upTo kv.Revision, limit int, withPrev bool) ([]kv.Change, error) {
	s, err := c.with(qChanges, ks, after)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	var list []kv.Change
	var last kv.Revision
	sub := int64(0)
	for s.Step() {
		rev := s.ColumnInt64(0)
		if rev > upTo || rev != last && len(list) >= limit {
			return list, nil
		}
		if rev != last {
			last, sub = rev, 0
		}
		ch := kv.Change{Sub: sub, PrevRevision: s.ColumnInt64(5)}
		sub++
		ch.KV.ModRevision = rev
		ch.KV.Version = s.ColumnInt64(1)
		ch.Deleted = ch.KV.Version == 0
		fillBytes(s, &ch.KV, 6, 7, !ch.Deleted)
		if !ch.Deleted {
			ch.KV.CreateRevision, ch.KV.Lease = s.ColumnInt64(2), s.ColumnInt64(3)
		}
		// Below the compaction revision a previous value may still exist, or not; returning
		// it would make history depend on the progress of the sweep.
		if withPrev && ch.PrevRevision != 0 && rev > head.Compacted {
			prev, err := c.previous(s.ColumnInt64(4), ch.KV.Key)
			if err != nil {
				return nil, err
			}
			ch.Prev = prev
		}
		list = append(list, ch)
	}
	return list, s.Err()
}

// previous reads log row id, a change of key; nil if it no longer exists.
func (c *conn) previous(id int64, key []byte) (*kv.KeyValue, error) {
	s, err := c.with(qLogRow, id)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	if !s.Step() || s.ColumnInt64(1) == 0 {
		return nil, s.Err()
	}
	return &kv.KeyValue{
		Key:            key,
		ModRevision:    s.ColumnInt64(0),
		Version:        s.ColumnInt64(1),
		CreateRevision: s.ColumnInt64(2),
		Lease:          s.ColumnInt64(3),
		Value:          s.ColumnBlob(5, nil),
	}, nil
}
