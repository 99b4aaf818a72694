package mvcc

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of a lease's time to live, in seconds. The least is what etcd grants
// with its default election timeout.
const (
	minLeaseTTL = 2
	maxLeaseTTL = 9_000_000_000
	// revokeRetry is how long an expired lease waits if it could not be revoked.
	revokeRetry = time.Second
)

// lessor knows when leases end. That a lease exists, and which keys it has, is
// in the table; only the time left is in memory, and a restart gives every
// lease its full time again, as a change of leader does in etcd.
type lessor struct {
	k     *Keyspace
	wakec chan struct{}

	mu     sync.Mutex
	leases map[kv.LeaseID]*lease
	expiry expiryHeap
}

type lease struct {
	id  kv.LeaseID
	ttl time.Duration
	// expires moves on with every keep-alive; due is where the lease stands in
	// the heap, which follows when it gets there.
	expires, due time.Time
	gone         chan struct{} // closed when it is revoked
}

func newLessor(k *Keyspace, records []kv.LeaseRecord) *lessor {
	l := &lessor{k: k, wakec: make(chan struct{}, 1), leases: map[kv.LeaseID]*lease{}}
	for _, r := range records {
		l.add(r)
	}
	return l
}

func (l *lessor) add(r kv.LeaseRecord) {
	e := &lease{id: r.ID, ttl: time.Duration(r.TTL) * time.Second, gone: make(chan struct{})}
	e.expires = l.k.opts.Clock.Now().Add(e.ttl)
	e.due = e.expires
	l.leases[r.ID] = e
	heap.Push(&l.expiry, e)
}

// granted and revoked follow what was committed.
func (l *lessor) granted(r kv.LeaseRecord) {
	l.mu.Lock()
	l.add(r)
	l.mu.Unlock()
	l.wake()
}

func (l *lessor) revoked(id kv.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[id]; e != nil {
		delete(l.leases, id) // the heap forgets it when it is due
		close(e.gone)
	}
}

func (l *lessor) wake() {
	select {
	case l.wakec <- struct{}{}:
	default:
	}
}

// loop revokes leases when their time is over.
func (l *lessor) loop() {
	clock := l.k.opts.Clock
	for {
		now := clock.Now()
		expired, next := l.collect(now)
		for _, id := range expired {
			err := l.k.commits.do(l.k.ctx, &write{revoke: id})
			if err != nil && !errors.Is(err, kv.ErrLeaseNotFound) {
				l.retry(id)
			}
		}
		if len(expired) > 0 {
			continue
		}
		timer := clock.NewTimer(next)
		if clock.Since(now) > time.Millisecond {
			timer.Stop() // the clock has been set on meanwhile: the timer is late
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

// collect takes the leases whose time is over from the heap, or tells how long
// until there may be one.
func (l *lessor) collect(now time.Time) (expired []kv.LeaseID, next time.Duration) {
	if l.k.ctx.Err() != nil {
		return nil, time.Hour
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.expiry) > 0 {
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
			expired = append(expired, e.id)
		}
	}
	return expired, time.Hour
}

func (l *lessor) retry(id kv.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[id]; e != nil {
		e.due = l.k.opts.Clock.Now().Add(revokeRetry)
		e.expires = e.due
		heap.Push(&l.expiry, e)
	}
}

// Grant implements kv.Leases.
func (k *Keyspace) Grant(ctx context.Context, id kv.LeaseID, ttl time.Duration) (*kv.Lease, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	if ttl > maxLeaseTTL*time.Second {
		return nil, fmt.Errorf("grant lease of %v: %w", ttl, kv.ErrLeaseTTLTooLarge)
	}
	record := kv.LeaseRecord{ID: id, TTL: max(seconds, minLeaseTTL)}
	for {
		if id == 0 {
			record.ID = rand.Int64N(1<<63-1) + 1
		}
		r := record
		w := &write{grant: &r}
		err := k.commits.do(ctx, w)
		if id == 0 && errors.Is(err, kv.ErrLeaseExists) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d := time.Duration(r.TTL) * time.Second
		return &kv.Lease{ID: r.ID, Granted: d, Remaining: d, Revision: w.rev}, nil
	}
}

// Revoke implements kv.Leases.
func (k *Keyspace) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	if id == 0 {
		return 0, fmt.Errorf("revoke lease 0: %w", kv.ErrLeaseNotFound)
	}
	w := &write{revoke: id}
	if err := k.commits.do(ctx, w); err != nil {
		return 0, err
	}
	return w.rev, nil
}

// KeepAlive implements kv.Leases. A lease whose time is over is not saved any
// more, even if it is still there: its keys may go at any moment, so the caller
// hears what became of it once that is certain.
func (k *Keyspace) KeepAlive(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	notFound := fmt.Errorf("keep lease %d alive: %w", id, kv.ErrLeaseNotFound)
	l := k.leases
	l.mu.Lock()
	e := l.leases[id]
	if e == nil {
		l.mu.Unlock()
		return nil, notFound
	}
	now := k.opts.Clock.Now()
	if e.expires.After(now) {
		e.expires = now.Add(e.ttl)
		l.mu.Unlock()
		return &kv.Lease{ID: id, Granted: e.ttl, Remaining: e.ttl, Revision: k.revision()}, nil
	}
	l.mu.Unlock()
	select {
	case <-e.gone:
		return nil, notFound
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-k.ctx.Done():
		return nil, errClosed
	}
}

// TimeToLive implements kv.Leases.
func (k *Keyspace) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	l := k.leases
	l.mu.Lock()
	e := l.leases[id]
	var res *kv.Lease
	if e != nil {
		res = &kv.Lease{ID: id, Granted: e.ttl, Remaining: max(e.expires.Sub(k.opts.Clock.Now()), 0)}
	}
	l.mu.Unlock()
	if res == nil {
		return nil, fmt.Errorf("lease %d: %w", id, kv.ErrLeaseNotFound)
	}
	res.Revision = k.revision()
	if withKeys {
		keys, head, err := k.table.LeaseKeys(ctx, id)
		if err != nil {
			return nil, err
		}
		k.saw(head.Revision)
		res.Keys, res.Revision = keys, head.Revision
	}
	return res, nil
}

// LeaseList implements kv.Leases.
func (k *Keyspace) LeaseList(context.Context) ([]kv.LeaseID, kv.Revision, error) {
	if err := k.open(); err != nil {
		return nil, 0, err
	}
	l := k.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]kv.LeaseID, 0, len(l.leases))
	for id := range l.leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, k.revision(), nil
}

// revision is the newest that anybody was told of.
func (k *Keyspace) revision() kv.Revision { return max(k.hub.rev.Load(), k.seen.Load()) }

// expiryHeap orders leases by when to look at them.
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
	return e
}
