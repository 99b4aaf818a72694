package mvcc

import (
	"context"

	"github.com/atoll-dev/atoll/kv"
)

// A keyspace with limits counts its keys and their bytes in each commit. The numbers at the head come from the table, which stores
// them with the head; they are counted if another program, or an engine without limits, has committed last. The batch adds what
// its transactions change. Since the table holds the head meanwhile, the decision is exact with any number of servers.
//
// That needs the values of all keys that are replaced or deleted: they are loaded as for a watch that requests them. Optimistic commits
// do not hold the head, so they are not tried.

// SetLimits replaces the limits, from the next commit on.
func (k *Keyspace) SetLimits(limits kv.Limits) { k.limits.Store(&limits) }

// Usage returns what the keyspace has stored. Without limits it reads all keys to count them.
func (k *Keyspace) Usage(ctx context.Context) (kv.Usage, error) {
	if err := k.open(); err != nil {
		return kv.Usage{}, err
	}
	used, head, err := k.table.Usage(ctx)
	if err != nil {
		return kv.Usage{}, err
	}
	k.observed(head.Revision)
	return used, nil
}

// usage is the accounting of a batch.
type usage struct {
	limits kv.Limits
	// base is the usage at the head, nil until it is needed.
	base *kv.Usage
	// change is what the batch has changed so far.
	change kv.Usage
}

// tracked makes the batch count, if there is a limit.
func (b *batch) tracked(limits kv.Limits) *batch {
	if limits.Any() {
		b.usage = &usage{limits: limits}
	}
	return b
}

// changed returns what the batch has changed so far.
func (b *batch) changed() kv.Usage {
	if b.usage == nil {
		return kv.Usage{}
	}
	return b.usage.change
}

// checkLimits refuses the current transaction if it exceeds a limit by its net effect. before is the change without it.
func (b *batch) checkLimits(before kv.Usage) error {
	if b.usage == nil || b.exempt || len(b.changes) == b.started {
		return nil
	}
	base, err := b.baseUsage()
	if err != nil {
		return err
	}
	if err := b.usage.limits.Check(base.Plus(before), base.Plus(b.usage.change)); err != nil {
		return requestError{err}
	}
	return nil
}

func (b *batch) baseUsage() (kv.Usage, error) {
	if b.usage.base == nil {
		base, err := b.tx.Usage()
		if err != nil {
			return kv.Usage{}, err
		}
		b.usage.base = &base
	}
	return *b.usage.base, nil
}

// write writes the changes, and the usage after them.
func (b *batch) write() error {
	if b.usage != nil {
		base, err := b.baseUsage()
		if err != nil {
			return err
		}
		b.tx.SetUsage(base.Plus(b.usage.change))
	}
	return b.tx.Write(b.rev, b.changes)
}
