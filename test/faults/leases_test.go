package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// leasePrefix is where the keys of leases are.
const leasePrefix = "lease/"

// holders hold leases, each one after the other.
const holders = 6

// holding is one lease and the key that is attached to it. Times are those of
// this process: what a client can say for itself.
type holding struct {
	key string
	ttl time.Duration
	// renewed is when the last request to grant or renew that was answered had
	// been sent: the lease must live for its whole time from then on.
	renewed time.Time
	// gone is when anybody was told that the key was deleted.
	gone time.Time
}

// leaseholders records what became of leases.
type leaseholders struct {
	*run
	mu       sync.Mutex
	all      map[string]*holding
	renewals int
	refused  int
	expired  int
	wrong    []string
}

// TestLeases: whatever happens to servers, connections and database, no lease
// ends before its time after an answered renewal, none is renewed that has
// ended, and in the end all do. Leader election is built on this.
func TestLeases(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL and takes half a minute")
	}
	t.Parallel()
	st := newStage(t)
	seed := seedOf(t)
	for n := range uint64(2) { // in one process, and in processes of their own
		t.Run(fmt.Sprintf("seed=%d", seed+n), func(t *testing.T) {
			p := makePlan(seed+n, 8*time.Second, st.possible())
			p.steps = slices.DeleteFunc(p.steps, func(s step) bool { return s.kind == compacts })
			l := &leaseholders{run: begin(t, st, p), all: map[string]*holding{}}
			l.perform(t)
		})
	}
}

func (l *leaseholders) perform(t *testing.T) {
	watching, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	var watches sync.WaitGroup
	for n := range servers {
		watches.Go(func() { l.watchLeases(watching, n) })
	}
	holding, stopHolding := context.WithCancel(t.Context())
	var holds sync.WaitGroup
	for id := range holders {
		holds.Go(func() { l.hold(holding, id) })
	}
	l.harm(t.Context())
	// Faults, or a slow machine, may have left no time for renewals.
	l.awaitCount(t, &l.renewals, enoughRenewals)
	stopHolding()
	holds.Wait()
	l.awaitExpiry(t)
	l.awaitCount(t, &l.expired, 1)
	stopWatching()
	watches.Wait()

	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%v\n  %d leases, %d renewals, %d refused or unanswered, %d seen to expire; on connections: %v",
		l.plan, len(l.all), l.renewals, l.refused, l.expired, l.injected())
	for _, wrong := range append(l.wrong, l.broken...) {
		t.Error(wrong)
	}
	if l.renewals < enoughRenewals || l.expired == 0 {
		t.Error("too little happened to mean anything")
	}
}

// enoughRenewals are how many must have been answered to mean anything.
const enoughRenewals = 10

// awaitCount waits, for a bounded time, until something has happened often enough.
func (l *leaseholders) awaitCount(t *testing.T, count *int, enough int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); wait(t.Context(), 20*time.Millisecond) {
		l.mu.Lock()
		reached := *count >= enough || len(l.wrong) > 0
		l.mu.Unlock()
		if reached {
			return
		}
	}
}

func (l *leaseholders) violated(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// hold grants leases, keeps each alive for a while through any server, and then
// forgets it.
func (l *leaseholders) hold(ctx context.Context, id int) {
	r := rand.New(rand.NewPCG(l.plan.seed, 2000+uint64(id)))
	at := func(do func(ctx context.Context, ks kv.Keyspace) error) error {
		ks, err := l.servers[r.IntN(servers)].keyspace()
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		return do(limited, ks)
	}
	for n := 0; ctx.Err() == nil; n++ {
		h := &holding{key: fmt.Sprintf("%s%d/%d", leasePrefix, id, n)}
		var lease kv.LeaseID
		sent := time.Now()
		err := at(func(ctx context.Context, ks kv.Keyspace) error {
			granted, err := ks.Grant(ctx, 0, time.Duration(2+r.IntN(2))*time.Second)
			if err == nil {
				lease, h.ttl = granted.ID, granted.Granted
			}
			return err
		})
		if err == nil {
			h.renewed = sent
			l.mu.Lock()
			l.all[h.key] = h
			l.mu.Unlock()
			err = at(func(ctx context.Context, ks kv.Keyspace) error {
				_, err := ks.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(h.key), Lease: lease}}}})
				return err
			})
		}
		if err != nil {
			if !l.mayFail(h, err, sent) {
				return
			}
			wait(ctx, 20*time.Millisecond)
			continue
		}
		l.renew(ctx, h, lease, 2+r.IntN(10), at)
	}
}

func (l *leaseholders) renew(ctx context.Context, h *holding, lease kv.LeaseID, times int, at func(func(context.Context, kv.Keyspace) error) error) {
	for range times {
		wait(ctx, 250*time.Millisecond)
		if ctx.Err() != nil {
			return
		}
		sent := time.Now()
		err := at(func(ctx context.Context, ks kv.Keyspace) error {
			_, err := ks.KeepAlive(ctx, lease)
			return err
		})
		if err != nil {
			if !l.mayFail(h, err, sent) {
				return
			}
			if errors.Is(err, kv.ErrLeaseNotFound) {
				return
			}
			continue
		}
		l.mu.Lock()
		l.renewals++
		if over := sent.Add(h.ttl); !h.gone.IsZero() && h.gone.Before(over) {
			l.violated("%s was gone %v before the end of its lease, or renewed after that", h.key, over.Sub(h.gone))
		}
		h.renewed = sent
		l.mu.Unlock()
	}
}

// mayFail notes an error, and whether faults excuse it: a lease that is not
// found has to be over.
func (l *leaseholders) mayFail(h *holding, err error, sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
	switch {
	case errors.Is(err, kv.ErrLeaseNotFound):
		if over := h.renewed.Add(h.ttl); time.Now().Before(over) {
			l.violated("%s: its lease was not found %v before it was over", h.key, time.Until(over))
			return false
		}
	case !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome) && !errors.Is(err, kv.ErrClosed) &&
		!errors.Is(err, kv.ErrOverloaded) && !errors.Is(err, context.DeadlineExceeded):
		l.violated("%s: an error that no fault excuses, %v after it was sent: %v", h.key, time.Since(sent), err)
		return false
	}
	return true
}

// watchLeases looks for deletions.
func (l *leaseholders) watchLeases(ctx context.Context, n int) {
	next := kv.Revision(2)
	for ; ctx.Err() == nil; wait(ctx, 20*time.Millisecond) {
		ks, err := l.servers[n].keyspace()
		if err != nil {
			continue
		}
		limited, cancel := context.WithCancel(ctx)
		w, err := ks.Watch(limited, kv.WatchRequest{Span: kv.Prefix([]byte(leasePrefix)), StartRevision: next})
		if err == nil {
			for r := range w.Responses() {
				now := time.Now()
				for _, e := range r.Events {
					if e.Type == kv.EventDelete {
						l.seeGone(string(e.KV.Key), now)
					}
				}
				next = max(next, r.Revision+1)
			}
		}
		cancel()
	}
}

// seeGone: nobody deletes these keys, so it was the end of their lease.
func (l *leaseholders) seeGone(key string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.all[key]
	if h == nil {
		l.violated("%s was deleted, but nobody has put it", key)
		return
	}
	if !h.gone.IsZero() {
		return // another server's watch was quicker
	}
	h.gone = now
	l.expired++
	if over := h.renewed.Add(h.ttl); now.Before(over) {
		l.violated("%s was gone %v before the end of its lease", key, over.Sub(now))
	}
}

// awaitExpiry waits until no key is left.
func (l *leaseholders) awaitExpiry(t *testing.T) {
	begin := time.Now()
	for n := 0; ; n++ {
		ks, err := l.servers[n%servers].keyspace()
		var res *kv.RangeResult
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), callLimit)
			res, err = ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte(leasePrefix)), KeysOnly: true})
			cancel()
		}
		if err == nil && len(res.KVs) == 0 {
			return
		}
		if time.Since(begin) > recovery {
			if err == nil {
				var keys [][]byte
				for _, k := range res.KVs {
					keys = append(keys, k.Key)
				}
				err = fmt.Errorf("there are still %s", bytes.Join(keys, []byte(", ")))
			}
			l.fail("leases do not end, %v after nobody renews them: %v", recovery, err)
			return
		}
		wait(t.Context(), 50*time.Millisecond)
	}
}

// wait lets time pass, unless ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
