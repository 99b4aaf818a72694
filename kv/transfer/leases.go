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

// goneTTL is granted in place of a lease that has ended at the source while its
// keys were on their way: they are to go here too.
const goneTTL = time.Minute

// leases grants in a target the leases that keys of a source are attached to,
// under the same ids and with the time to live that they were granted.
type leases struct {
	dst kv.Keyspace
	// ttl looks a lease up at the source.
	ttl func(ctx context.Context, id kv.LeaseID) (time.Duration, error)

	mu      sync.Mutex
	granted map[kv.LeaseID]time.Duration
	more    chan struct{} // says that one was granted
}

func newLeases(dst kv.Keyspace, ttl func(context.Context, kv.LeaseID) (time.Duration, error)) *leases {
	return &leases{dst: dst, ttl: ttl, granted: map[kv.LeaseID]time.Duration{}, more: make(chan struct{}, 1)}
}

// of a live source.
func leaseTTL(src Source) func(context.Context, kv.LeaseID) (time.Duration, error) {
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
		ttl, err = goneTTL, nil
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

// count of leases granted.
func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.granted)
}

// keepAlive renews in the target, until ctx ends, every lease that the source
// still has: its owners renew it there and know nothing of the target.
func (l *leases) keepAlive(ctx context.Context, clock clock.Clock) {
	last := clock.Now()
	for {
		select {
		case <-l.more: // what it says is in what follows
		default:
		}
		ids, shortest := l.all()
		// Counted from the last round, so that leases which come all the time cannot
		// put it off.
		pause := max(shortest/4, 250*time.Millisecond) - clock.Since(last)
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-l.more: // it may need to be renewed sooner
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

// all leases granted, and the least of their times to live.
func (l *leases) all() (ids []kv.LeaseID, shortest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	shortest = goneTTL
	for id, ttl := range l.granted {
		shortest = min(shortest, ttl)
		ids = append(ids, id)
	}
	return ids, shortest
}

func (l *leases) keepOne(ctx context.Context, id kv.LeaseID) {
	_, err := l.ttl(ctx, id)
	if errors.Is(err, kv.ErrLeaseNotFound) {
		// Its keys go by their own deletions; what is left goes by time.
		l.mu.Lock()
		delete(l.granted, id)
		l.mu.Unlock()
		return
	}
	// If the source cannot be asked or the target not be told, the next round
	// tries again; a key whose lease ended comes back with its next change, or with
	// a mirror.
	if err == nil {
		_, _ = l.dst.KeepAlive(ctx, id)
	}
}
