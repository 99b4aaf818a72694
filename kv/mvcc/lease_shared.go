package mvcc

import (
	"context"
	"math"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the time between two reads of all leases of a shared table. In
// between they are a quarter of the shortest lease apart, so that every server
// notices in time what the others have granted and renewed.
const (
	leasePollMin = 500 * time.Millisecond
	leasePollMax = 5 * time.Second
	// leasePollShare bounds the part of the time that goes into reading leases;
	// but a read that was held up must not put off the next for long.
	leasePollShare = 20
	leasePollSlow  = 2 * leasePollMax
)

// leasePoll is how a lessor follows the leases of a shared table. A renewal
// moves the lease's beat in the table. Every server reads the beats from time
// to time, gives a lease its full time anew when it sees the beat move, and, when
// by its own clock that time is over, revokes the lease unless the beat has
// moved meanwhile. So no two clocks are ever compared, any server can see to it
// that leases end, and one that was held up for a while does no harm.
//
// All fields but reads and soonc are guarded by lessor.mu.
type leasePoll struct {
	l     *lessor
	reads *joined[struct{}]
	soonc chan struct{}

	// begun counts reads. What is committed here while a read is under way the
	// read may not know, and it must not undo it: so leases carry the number of
	// the read that had begun when they were changed, and dead has that of
	// those that were revoked.
	begun uint64
	dead  map[kv.LeaseID]uint64

	shortest time.Duration // of the times to live that were met lately
	last     time.Time     // when leases were read
	took     time.Duration // and how long that took
	deadline time.Time     // when that is too long ago to judge by
}

func (p *leasePoll) init(l *lessor) {
	p.l = l
	p.soonc = make(chan struct{}, 1)
	p.dead = map[kv.LeaseID]uint64{}
	p.reads = newJoined(l.k, p.read)
	p.shortest = math.MaxInt64
	p.last = l.k.opts.Clock.Now()
	p.deadline = p.last.Add(2 * leasePollMax)
}

// interval between reads. The caller holds mu.
func (p *leasePoll) interval() time.Duration {
	return max(min(p.shortest/4, leasePollMax), p.least())
}

// least time between reads, however much there is to learn. The caller holds mu.
func (p *leasePoll) least() time.Duration {
	return max(leasePollMin, min(p.took*leasePollShare, leasePollSlow))
}

// met takes note of a lease's time to live. The caller holds mu.
func (p *leasePoll) met(ttl time.Duration) {
	if ttl < p.shortest {
		p.shortest = ttl
		p.soon()
	}
}

// stale tells whether leases were read too long ago to say that one has not
// moved. The caller holds mu.
func (p *leasePoll) stale(now time.Time) bool { return now.After(p.deadline) }

// revoked remembers a lease that is gone for as long as a read may bring it
// back. The caller holds mu.
func (p *leasePoll) revoked(id kv.LeaseID) {
	if p.l.k.shared {
		p.dead[id] = p.begun
	}
}

// soon has leases read before it is time.
func (p *leasePoll) soon() { wake(p.soonc) }

// refresh reads all leases, as they are now or later.
func (p *leasePoll) refresh(ctx context.Context) error {
	_, err := p.reads.ask(ctx)
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
		p.allow(now.Sub(p.last), now)
	}
	p.apply(round, records)
	p.last = now
	p.deadline = now.Add(2 * p.interval())
	wake(l.wakec)
	return none, nil
}

// allow gives leases back the time in which nothing was heard of the table:
// nobody may have been able to renew them.
func (p *leasePoll) allow(gap time.Duration, now time.Time) {
	for _, e := range p.l.leases {
		if until := min(e.expires.Sub(now)+gap, e.ttl); until > e.expires.Sub(now) {
			e.expires = now.Add(until)
		}
	}
}

// apply takes over leases as the table had them in a read.
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
			l.put(r)
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

// named looks for leases in changes of other servers that are not known here.
func (l *lessor) named(changes []kv.Change) {
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

// follow reads leases from time to time.
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
