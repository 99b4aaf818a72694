package mvcc

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

var _ kv.Alarms = (*Keyspace)(nil)

// NoSpaceAlarm implements kv.Alarms. A table that keeps no alarms has none.
func (k *Keyspace) NoSpaceAlarm(ctx context.Context) (bool, error) {
	a, err := k.alarms()
	if errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	raised, err := a.NoSpaceAlarm(ctx)
	k.notedAlarm(err)
	return raised, err
}

// SetNoSpaceAlarm implements kv.Alarms.
// Errors: errors.ErrUnsupported, if the table keeps no alarms.
func (k *Keyspace) SetNoSpaceAlarm(ctx context.Context, raised bool) error {
	a, err := k.alarms()
	if err != nil {
		return err
	}
	err = a.SetNoSpaceAlarm(ctx, raised)
	k.notedAlarm(err)
	return err
}

func (k *Keyspace) alarms() (kv.Alarms, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	table := k.table
	if t, ok := table.(sharedTable); ok {
		table = t.table
	}
	a, ok := table.(kv.Alarms)
	if !ok {
		return nil, fmt.Errorf("alarm: the table keeps none: %w", errors.ErrUnsupported)
	}
	return a, nil
}

// notedAlarm records an answer of a shared table, like that of any other call.
func (k *Keyspace) notedAlarm(err error) {
	if t, ok := k.table.(sharedTable); ok {
		t.noteDone(err)
	}
}
