package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// expiredLeaseTTL is granted in place of a lease that has expired at the source during the
// copy: its keys must expire in the target, too.
const expiredLeaseTTL = time.Minute

// leases grants the leases of a source's keys in a target, with the same IDs and granted
// TTLs.
type leases struct {
	dst kv.Keyspace
	// ttl looks up a lease at the source.
	ttl func(ctx context.Context, id kv.LeaseID) (time.Duration, error)

	mu      sync.Mutex
	granted map[kv.LeaseID]time.Duration
	more    chan struct{} // signals that a lease was granted
}

func newLeases(dst kv.Keyspace, ttl func(context.Context, kv.LeaseID) (time.Duration, error)) *leases {
	return &leases{dst: dst, ttl: ttl, granted: map[kv.LeaseID]time.Duration{}, more: make(chan struct{}, 1)}
}

// leaseTTL looks up leases of a live source.
func leaseTTL(src SourceReader) func(context.Context, kv.LeaseID) (time.Duration, error) {
	return func(ctx context.Context, id kv.LeaseID) (time.Duration, error) {
		l, err := src.TimeToLive(ctx, id, false)
		if err != nil {
			return 0, err
		}
		return l.Granted, nil
	}
}

func (l *leases) ensure(ctx context.Context, id kv.LeaseID) error {
	l.mu.Lock()
	_, known := l.granted[id]
	l.mu.Unlock()
	if known {
		return nil
	}
	return l.renew(ctx, id)
}

// renew grants a lease that the target may have lost.
func (l *leases) renew(ctx context.Context, id kv.LeaseID) error {
	ttl, err := l.ttl(ctx, id)
	if errors.Is(err, kv.ErrLeaseNotFound) {
		ttl, err = expiredLeaseTTL, nil
	}
	if err != nil {
		return fmt.Errorf("look up lease %x at the source: %w", id, err)
	}
	if _, err := l.dst.Grant(ctx, id, ttl); err != nil && !errors.Is(err, kv.ErrLeaseExists) {
		return fmt.Errorf("grant lease %x in the target: %w", id, err)
	}
	l.mu.Lock()
	l.granted[id] = ttl
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return nil
}

// count returns the number of granted leases.
func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.granted)
}

// keepAlive renews, until ctx ends, every lease in the target that the source still has.
// Its owners renew it only at the source.
func (l *leases) keepAlive(ctx context.Context, clock clock.Clock) {
	last := clock.Now()
	for {
		select {
		case <-l.more: // only a wake-up
		default:
		}
		ids, shortest := l.all()
		// The pause counts from the last round, so that a steady stream of new leases
		// cannot postpone it.
		pause := max(shortest/4, 250*time.Millisecond) - clock.Since(last)
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-l.more: // the new lease may need a renewal earlier
				continue
			case <-clock.After(pause):
			}
		}
		last = clock.Now()
		for _, id := range ids {
			if ctx.Err() != nil {
				return
			}
			l.keepOne(ctx, id)
		}
	}
}

// all returns the granted leases, and their shortest TTL.
func (l *leases) all() (ids []kv.LeaseID, shortest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	shortest = expiredLeaseTTL
	for id, ttl := range l.granted {
		shortest = min(shortest, ttl)
		ids = append(ids, id)
	}
	return ids, shortest
}

func (l *leases) keepOne(ctx context.Context, id kv.LeaseID) {
	_, err := l.ttl(ctx, id)
	if errors.Is(err, kv.ErrLeaseNotFound) {
		// Its keys are deleted individually; the lease in the target expires.
		l.mu.Lock()
		delete(l.granted, id)
		l.mu.Unlock()
		return
	}
	// If the source or the target does not answer, the next round retries. A key whose
	// lease expired is restored by its next change, or by a mirror.
	if err == nil {
		_, _ = l.dst.KeepAlive(ctx, id)
	}
}
