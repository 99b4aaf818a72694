package mvcc

import (
	"container/heap"
	"errors"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of a lease's time to live, in seconds. The minimum is the one that etcd grants
// with its default election timeout.
const (
	minLeaseTTL = 2
	maxLeaseTTL = 9_000_000_000
	// revokeRetry is the delay before retrying to revoke an expired lease.
	revokeRetry = time.Second
	// maxExpiring bounds the number of concurrent revocations; they share commits.
	maxExpiring = 128
)

// lessor knows when leases expire. The table stores each lease and its keys. The remaining
// time is only in memory, so a restart renews every lease for its full TTL, as a change of
// leader does in etcd. lease_shared.go follows leases that other servers renew.
type lessor struct {
	k     *Keyspace
	wakec chan struct{}
	poll  leasePoll // for a shared table

	mu     sync.Mutex
	leases map[kv.LeaseID]*lease
	expiry expiryHeap
}

type lease struct {
	id  kv.LeaseID
	ttl time.Duration
	// beat is the last observed heartbeat counter.
	beat int64
	// expires advances with every renewal. due is the lease's position in the heap, which
	// is corrected when it is reached.
	expires, due time.Time
	queued       bool          // in the heap
	gone         chan struct{} // closed when the lease is revoked
	// round is the number of the last read of leases that had begun when the lease was last
	// changed here.
	round uint64
}

func newLessor(k *Keyspace, records []kv.LeaseRecord) *lessor {
	l := &lessor{k: k, wakec: make(chan struct{}, 1), leases: map[kv.LeaseID]*lease{}}
	l.poll.init(l)
	for _, r := range records {
		l.set(r)
	}
	return l
}

// set adds or replaces a lease with its full TTL. The caller holds mu.
func (l *lessor) set(r kv.LeaseRecord) *lease {
	ttl := time.Duration(r.TTL) * time.Second
	e := l.leases[r.ID]
	if e != nil && e.ttl != ttl {
		l.drop(e) // another lease with the same ID
		e = nil
	}
	if e == nil {
		e = &lease{id: r.ID, ttl: ttl, gone: make(chan struct{})}
		l.leases[r.ID] = e
		l.poll.observeTTL(ttl)
	}
	e.beat = r.Beat
	e.expires = l.k.opts.Clock.Now().Add(ttl)
	l.enqueue(e)
	return e
}

func (l *lessor) enqueue(e *lease) {
	if !e.queued {
		e.due, e.queued = e.expires, true
		heap.Push(&l.expiry, e)
	}
}

// drop removes a lease; the heap drops it when it is due. The caller holds mu.
func (l *lessor) drop(e *lease) {
	delete(l.leases, e.id)
	close(e.gone)
}

// committed applies a committed change of a lease.
func (l *lessor) committed(w *leaseWrite) {
	l.mu.Lock()
	switch w.kind {
	case leaseGrant, leaseRenew:
		l.set(w.now).round = l.poll.begun
	default:
		if e := l.leases[w.record.ID]; e != nil {
			l.drop(e)
		}
		l.poll.revoked(w.record.ID)
	}
	l.mu.Unlock()
	if w.kind == leaseGrant || l.k.shared {
		wake(l.wakec)
	}
}

// loop revokes expired leases.
func (l *lessor) loop() {
	clock := l.k.opts.Clock
	for {
		now := clock.Now()
		expired, next := l.collect(now)
		l.expire(expired)
		if len(expired) > 0 {
			continue
		}
		timer := clock.NewTimer(next)
		if clock.Since(now) > time.Millisecond {
			timer.Stop() // the clock jumped ahead meanwhile: the timer is late
			continue
		}
		select {
		case <-timer.C():
		case <-l.wakec:
			timer.Stop()
		case <-l.k.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// collect removes expired leases from the heap, or returns the time until the next one may
// expire.
func (l *lessor) collect(now time.Time) (expired []kv.LeaseRecord, next time.Duration) {
	if l.k.ctx.Err() != nil {
		return nil, time.Hour
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.k.shared && l.poll.stale(now) {
		return nil, time.Hour // an answer of the table wakes the loop
	}
	for len(l.expiry) > 0 && len(expired) < maxExpiring {
		e := l.expiry[0]
		switch {
		case l.leases[e.id] != e:
			heap.Pop(&l.expiry)
		case e.due.After(now):
			return expired, e.due.Sub(now)
		case e.expires.After(e.due):
			e.due = e.expires
			heap.Fix(&l.expiry, 0)
		default:
			heap.Pop(&l.expiry)
			expired = append(expired, kv.LeaseRecord{ID: e.id, Beat: e.beat})
		}
	}
	return expired, time.Hour
}

// expire revokes leases, all at once so that they share commits.
func (l *lessor) expire(expired []kv.LeaseRecord) {
	var wg sync.WaitGroup
	for _, r := range expired {
		wg.Go(func() {
			w := &leaseWrite{kind: leaseExpire, record: r}
			err := l.k.commits.do(l.k.ctx, &write{lease: w})
			switch {
			case err == nil:
			case errors.Is(err, errRenewed):
				l.mu.Lock()
				l.set(w.now).round = l.poll.begun
				l.mu.Unlock()
			case errors.Is(err, kv.ErrLeaseNotFound):
				l.mu.Lock()
				if e := l.leases[r.ID]; e != nil {
					l.drop(e)
				}
				l.poll.revoked(r.ID)
				l.mu.Unlock()
			default:
				l.retry(r.ID)
			}
		})
	}
	wg.Wait()
}

func (l *lessor) retry(id kv.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[id]; e != nil && !e.queued {
		e.expires = l.k.opts.Clock.Now().Add(revokeRetry)
		l.enqueue(e)
	}
}

// expiryHeap orders leases by due time.
type expiryHeap []*lease

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiryHeap) Push(x any)        { *h = append(*h, x.(*lease)) }
func (h *expiryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.queued = false
	return e
}
