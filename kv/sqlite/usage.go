package sqlite

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// Usage implements kv.Table.
func (t *table) Usage(ctx context.Context) (used kv.Usage, head kv.Head, err error) {
	err = t.read(ctx, "read usage", func(c *conn, h kv.Head) (err error) {
		head = h
		used, err = c.usage(t.id, h.Revision)
		return err
	})
	return used, head, err
}

// Usage implements kv.Tx.
func (x *tx) Usage() (kv.Usage, error) { return x.c.usage(x.t.id, x.head.Revision) }

// SetUsage implements kv.Tx.
func (x *tx) SetUsage(after kv.Usage) { x.used = &after }

// usage returns the usage at the head: the one of its commit, or a count.
func (c *conn) usage(ks int64, head kv.Revision) (kv.Usage, error) {
	s, err := c.with(qUsage, ks, head)
	if err != nil {
		return kv.Usage{}, err
	}
	stored := s.Step()
	used := kv.Usage{Keys: s.ColumnInt64(0), Bytes: s.ColumnInt64(1)}
	if err := s.Reset(); err != nil || stored {
		return used, err
	}
	if s, err = c.with(qCountUsage, ks); err != nil {
		return kv.Usage{}, err
	}
	s.Step()
	used = kv.Usage{Keys: s.ColumnInt64(0), Bytes: s.ColumnInt64(1)}
	return used, s.Reset()
}

// segment records n log rows from id first on as a commit that reaches rev. used is nil if it did not count.
func (c *conn) segment(ks, rev, first, n int64, used *kv.Usage) error {
	s, err := c.with(qSegment, ks, rev, first, n)
	if err != nil {
		return err
	}
	if used == nil {
		if err := s.BindNull(5); err != nil {
			return err
		}
		if err := s.BindNull(6); err != nil {
			return err
		}
		return s.Exec()
	}
	if err := s.BindInt64(5, used.Keys); err != nil {
		return err
	}
	if err := s.BindInt64(6, used.Bytes); err != nil {
		return err
	}
	return s.Exec()
}
