package sqlite

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Alarms = (*table)(nil)

// NoSpaceAlarm implements kv.Alarms.
func (t *table) NoSpaceAlarm(ctx context.Context) (raised bool, err error) {
	err = t.read(ctx, "read alarm", func(c *conn, _ kv.Head) error {
		s, err := c.with(qAlarm, t.id)
		if err != nil {
			return err
		}
		defer s.Reset()
		raised = s.Step() && s.ColumnInt64(0) != 0
		return s.Err()
	})
	return raised, err
}

// SetNoSpaceAlarm implements kv.Alarms.
func (t *table) SetNoSpaceAlarm(ctx context.Context, raised bool) error {
	number := int64(0)
	if raised {
		number = 1
	}
	return t.write(ctx, t.db.writer.do, func(c *conn, _ kv.Head) error { return c.exec(qSetAlarm, t.id, number) })
}

// SetNoSpaceAlarm refuses to write.
func (t readOnlyTable) SetNoSpaceAlarm(context.Context, bool) error {
	return t.refuse("set the alarm of")
}
