package postgres

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Alarms = (*table)(nil)

// NoSpaceAlarm implements kv.Alarms.
func (t *table) NoSpaceAlarm(ctx context.Context) (raised bool, err error) {
	err = t.snapshot(ctx, "read alarm", func(c *conn) { c.send(qAlarm, int4(t.id)) }, func(c *conn, _ head) error {
		raised = false
		_, err := c.result(func(*columns) error {
			raised = true
			return nil
		})
		return err
	})
	return raised, err
}

// SetNoSpaceAlarm implements kv.Alarms. It is a commit without a revision, like one that
// changes only leases.
func (t *table) SetNoSpaceAlarm(ctx context.Context, raised bool) error {
	return t.update(ctx, "set alarm", nil, func(x *tx) error {
		x.alarm = qDisarm
		if raised {
			x.alarm = qRaiseAlarm
		}
		return nil
	})
}
