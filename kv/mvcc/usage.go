package mvcc

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/atoll-dev/atoll/kv"
)

// A keyspace with limits counts its keys and their bytes in each commit. The numbers at the head come from the table, which stores
// them with the head; they are counted if another program, or an engine without limits, has committed last. The batch adds what
// its transactions change. Since the table holds the head meanwhile, the decision is exact with any number of servers.
//
// That needs the values of all keys that are replaced or deleted: they are loaded as for a watch that requests them. Optimistic commits
// do not hold the head, so they are not tried.
//
// Reservations (kv.ReservationPrefix) are entries of the keyspace itself, so the table stores no sum. The engine keeps it with the
// revision of kv.ReservationsKey, which each change of an entry puts, and which a batch loads together with the head.

// SetLimits replaces the limits, from the next commit on.
func (k *Keyspace) SetLimits(limits kv.Limits) { k.limits.Store(&limits) }

// Usage returns what the keyspace has stored and reserved. Without limits it reads all keys to count them.
func (k *Keyspace) Usage(ctx context.Context) (kv.Usage, error) {
	if err := k.open(); err != nil {
		return kv.Usage{}, err
	}
	for {
		used, head, err := k.table.Usage(ctx)
		if err != nil {
			return kv.Usage{}, err
		}
		k.observed(head.Revision)
		own, _, err := k.table.Range(ctx, kv.RangeRequest{Span: kv.UsageSpan(), Revision: head.Revision}, false)
		if errors.Is(err, kv.ErrCompacted) {
			continue // there have been changes since
		}
		if err != nil {
			return kv.Usage{}, err
		}
		return used.Plus(sumReserved(own.KVs)), nil
	}
}

// sumReserved returns the sum of kv.Reserved.
func sumReserved(all []kv.KeyValue) (sum kv.Usage) {
	for i := range all {
		sum = sum.Plus(kv.Reserved(&all[i]))
	}
	return sum
}

// reservations are the sum of the entries of a keyspace, as of one revision of kv.ReservationsKey. The zero value is that of a keyspace
// without entries.
type reservations struct {
	at  kv.Revision
	sum kv.Usage
}

// usage is the accounting of a batch.
type usage struct {
	limits kv.Limits
	// known is the sum that the engine knows. It may be older than the batch.
	known *atomic.Pointer[reservations]
	// base is the stored usage at the head, and reserved the sum of reservations; nil until they are needed.
	base, reserved *kv.Usage
	change         usageChange
}

// usageChange is what a batch has changed so far.
type usageChange struct{ stored, reserved kv.Usage }

func (c usageChange) sum() kv.Usage { return c.stored.Plus(c.reserved) }

// tracked makes the batch count, if there is a limit.
func (b *batch) tracked(limits kv.Limits, known *atomic.Pointer[reservations]) *batch {
	if limits.Any() {
		b.usage = &usage{limits: limits, known: known}
	}
	return b
}

// usageLookups are the keys that a batch with limits reads.
func usageLookups() []kv.Lookup {
	return []kv.Lookup{{Key: []byte(kv.LimitsKey), WithValue: true}, {Key: []byte(kv.ReservationsKey), WithValue: true}}
}

// count adds the change of one key.
func (u *usage) count(was, is *kv.KeyValue) {
	u.change.stored = u.change.stored.Plus(kv.UsageChange(was, is))
	now, before := kv.Reserved(is), kv.Reserved(was)
	u.change.reserved = u.change.reserved.Plus(kv.Usage{Keys: now.Keys - before.Keys, Bytes: now.Bytes - before.Bytes, Units: now.Units - before.Units})
}

// changed returns what the batch has changed so far.
func (b *batch) changed() usageChange {
	if b.usage == nil {
		return usageChange{}
	}
	return b.usage.change
}

// checkLimits refuses the current transaction if it exceeds a limit by its net effect. before is the change without it.
func (b *batch) checkLimits(before usageChange) error {
	if b.usage == nil || len(b.changes) == b.started {
		return nil
	}
	if err := kv.CheckReservations(b.changes[b.started:]); err != nil {
		return requestError{err}
	}
	if b.exempt {
		return nil
	}
	base, err := b.baseUsage()
	if err != nil {
		return err
	}
	reserved, err := b.baseReserved()
	if err != nil {
		return err
	}
	limits, err := b.limits()
	if err != nil {
		return err
	}
	base = base.Plus(reserved)
	if err := limits.Check(base.Plus(before.sum()), base.Plus(b.usage.change.sum())); err != nil {
		return requestError{err}
	}
	return nil
}

// limits returns the limits of the engine, or the stored ones where they are lower.
func (b *batch) limits() (kv.Limits, error) {
	stored, err := b.get([]byte(kv.LimitsKey), true)
	if err != nil || stored == nil {
		return b.usage.limits, err
	}
	return b.usage.limits.Min(kv.StoredLimits(stored.Value)), nil
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

// baseReserved returns what the keyspace has reserved at the head. It reads all entries if others may have changed them since the
// engine did so.
func (b *batch) baseReserved() (kv.Usage, error) {
	if b.usage.reserved != nil {
		return *b.usage.reserved, nil
	}
	var own [2]*kv.KeyValue
	for i, l := range usageLookups() {
		state, err := b.keyState(l.Key, true) // a key that the batch changed has its value too: see wantPrev
		if err != nil {
			return kv.Usage{}, err
		}
		own[i] = state.base
	}
	known := reservations{}
	if own[1] != nil {
		if k := b.usage.known.Load(); k != nil && k.at == own[1].ModRevision {
			known = *k
		} else {
			found, err := b.tx.Range(kv.RangeRequest{Span: kv.Prefix([]byte(kv.ReservationPrefix))}, false)
			if err != nil {
				return kv.Usage{}, err
			}
			known = reservations{own[1].ModRevision, sumReserved(found.KVs)}
			b.usage.known.Store(&known)
		}
	}
	sum := known.sum.Plus(kv.Reserved(own[0])).Plus(kv.Reserved(own[1]))
	b.usage.reserved = &sum
	return sum, nil
}

// write writes the changes, and the stored usage after them.
func (b *batch) write() error {
	if b.usage != nil {
		base, err := b.baseUsage()
		if err != nil {
			return err
		}
		b.tx.SetUsage(base.Plus(b.usage.change.stored))
	}
	return b.tx.Write(b.rev, b.changes)
}
