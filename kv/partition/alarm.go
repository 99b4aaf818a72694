package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Alarms = (*Keyspace)(nil)

// NoSpaceAlarm implements kv.Alarms: the parent keeps the alarm of the whole keyspace.
func (k *Keyspace) NoSpaceAlarm(ctx context.Context) (raised bool, err error) {
	err = k.inParent(ctx, func(a kv.Alarms) (err error) {
		raised, err = a.NoSpaceAlarm(ctx)
		return err
	})
	return raised, err
}

// SetNoSpaceAlarm implements kv.Alarms.
func (k *Keyspace) SetNoSpaceAlarm(ctx context.Context, raised bool) error {
	return k.inParent(ctx, func(a kv.Alarms) error { return a.SetNoSpaceAlarm(ctx, raised) })
}

func (k *Keyspace) inParent(ctx context.Context, call func(kv.Alarms) error) error {
	for try := 0; ; try++ {
		l := k.layout.Load()
		a, ok := l.parent.(kv.Alarms)
		if !ok {
			return fmt.Errorf("alarm of keyspace %q: %w", k.name, errors.ErrUnsupported)
		}
		if err := call(a); !k.shouldRetry(ctx, l, try, err) {
			return err
		}
	}
}
