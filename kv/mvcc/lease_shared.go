package mvcc

import (
	"context"
	"math"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the time between two reads of all leases of a shared table. Within them it is a
// quarter of the shortest TTL, so that every server notices in time the leases that others
// have granted and renewed.
const (
	leasePollMin = 500 * time.Millisecond
	leasePollMax = 5 * time.Second
	// leasePollShare bounds the part of the time spent on reading leases (one in so many).
	// But one delayed read must not postpone the next for long.
	leasePollShare = 20
	leasePollSlow  = 2 * leasePollMax
)

// leasePoll follows the leases of a shared table. A renewal increments the lease's beat in
// the table. Every server reads the beats from time to time, and renews a lease for its
// full TTL when it sees the beat change. When that time is over by its own clock, it
// revokes the lease, unless the beat has changed meanwhile. So no two clocks are ever
// compared, any server can expire leases, and a server that was paused does no harm.
//
// All fields but reads and soonc are guarded by lessor.mu.
type leasePoll struct {
	l     *lessor
	reads *coalesced[struct{}]
	soonc chan struct{}

	// begun counts reads. A read under way may miss changes that are committed here
	// meanwhile, and must not undo them. So each lease has the number of the last read that
	// had begun when it was changed, and dead has that number for revoked leases.
	begun uint64
	dead  map[kv.LeaseID]uint64

	shortest time.Duration // shortest TTL observed recently
	last     time.Time     // time of the last read
	took     time.Duration // duration of the last read
	deadline time.Time     // after it, the last read is too old to expire leases
}

func (p *leasePoll) init(l *lessor) {
	p.l = l
	p.soonc = make(chan struct{}, 1)
	p.dead = map[kv.LeaseID]uint64{}
	p.reads = newCoalesced(l.k, p.read)
	p.shortest = math.MaxInt64
	p.last = l.k.opts.Clock.Now()
	p.deadline = p.last.Add(2 * leasePollMax)
}

// interval returns the time between reads. The caller holds mu.
func (p *leasePoll) interval() time.Duration {
	return max(min(p.shortest/4, leasePollMax), p.least())
}

// least returns the minimum time between reads. The caller holds mu.
func (p *leasePoll) least() time.Duration {
	return max(leasePollMin, min(p.took*leasePollShare, leasePollSlow))
}

// observeTTL records a lease's time to live. The caller holds mu.
func (p *leasePoll) observeTTL(ttl time.Duration) {
	if ttl < p.shortest {
		p.shortest = ttl
		p.soon()
	}
}

// stale reports whether the last read is too old to conclude that a lease was not renewed.
// The caller holds mu.
func (p *leasePoll) stale(now time.Time) bool { return now.After(p.deadline) }

// revoked remembers a revoked lease for as long as an older read might restore it. The
// caller holds mu.
func (p *leasePoll) revoked(id kv.LeaseID) {
	if p.l.k.shared {
		p.dead[id] = p.begun
	}
}

// soon triggers a read of the leases ahead of schedule.
func (p *leasePoll) soon() { wake(p.soonc) }

// refresh returns after a read of all leases that began after the call.
func (p *leasePoll) refresh(ctx context.Context) error {
	_, err := p.reads.get(ctx)
	return err
}

func (p *leasePoll) read(ctx context.Context) (none struct{}, err error) {
	l := p.l
	clock := l.k.opts.Clock
	begin := clock.Now()
	l.mu.Lock()
	p.begun++
	round := p.begun
	l.mu.Unlock()
	records, err := l.k.table.Leases(ctx)
	if err != nil {
		return none, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := clock.Now()
	p.took = now.Sub(begin)
	if p.stale(now) {
		p.extend(now.Sub(p.last), now)
	}
	p.apply(round, records)
	p.last = now
	p.deadline = now.Add(2 * p.interval())
	wake(l.wakec)
	return none, nil
}

// extend adds the time without contact to the table to all leases, because no client may
// have been able to renew them.
func (p *leasePoll) extend(gap time.Duration, now time.Time) {
	for _, e := range p.l.leases {
		if until := min(e.expires.Sub(now)+gap, e.ttl); until > e.expires.Sub(now) {
			e.expires = now.Add(until)
		}
	}
}

// apply updates leases from a read of the table.
func (p *leasePoll) apply(round uint64, records []kv.LeaseRecord) {
	l := p.l
	there := make(map[kv.LeaseID]struct{}, len(records))
	for _, r := range records {
		there[r.ID] = struct{}{}
		if died, ok := p.dead[r.ID]; ok && died >= round {
			continue
		}
		e := l.leases[r.ID]
		if e == nil || e.beat != r.Beat && e.round < round {
			l.set(r)
		}
	}
	p.shortest = math.MaxInt64
	for id, e := range l.leases {
		if _, ok := there[id]; !ok && e.round < round {
			l.drop(e)
		} else {
			p.shortest = min(p.shortest, e.ttl)
		}
	}
	for id, died := range p.dead {
		if died < round {
			delete(p.dead, id)
		}
	}
}

// pollUnknown triggers a read if changes of other servers mention an unknown lease.
func (l *lessor) pollUnknown(changes []kv.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range changes {
		id := changes[i].KV.Lease
		if id == 0 || l.leases[id] != nil {
			continue
		}
		if _, dead := l.poll.dead[id]; !dead {
			l.poll.soon()
			return
		}
	}
}

// follow reads leases periodically.
func (l *lessor) follow() {
	clock := l.k.opts.Clock
	hurry := false
	for {
		l.mu.Lock()
		wait := l.poll.interval()
		if hurry {
			wait = l.poll.least()
		}
		wait -= clock.Since(l.poll.last)
		l.mu.Unlock()
		if wait > 0 {
			timer := clock.NewTimer(wait)
			select {
			case <-timer.C():
			case <-l.poll.soonc:
				timer.Stop()
				hurry = true
				continue
			case <-l.k.ctx.Done():
				timer.Stop()
				return
			}
		}
		hurry = false
		if err := l.poll.refresh(l.k.ctx); err != nil {
			select {
			case <-clock.After(leasePollMin):
			case <-l.k.ctx.Done():
				return
			}
		}
	}
}
