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

// leasePrefix is the prefix of keys with leases.
const leasePrefix = "lease/"

// holders is the number of clients that hold leases, each one lease after the other.
const holders = 6

// holding is a lease and the key attached to it. Times are those of this process, as a client measures
// them.
type holding struct {
	key string
	ttl time.Duration
	// renewed is when the last acknowledged request to grant or renew was sent. The lease must live for
	// its whole TTL from then on.
	renewed time.Time
	// gone is when the first watch got the deletion of the key.
	gone time.Time
}

// leaseholders records the history of all leases.
type leaseholders struct {
	*run
	mu         sync.Mutex
	all        map[string]*holding
	renewals   int
	refused    int
	expired    int
	violations []string
}

// TestLeases: under all faults, no lease ends before its TTL after an acknowledged renewal, no lease is
// renewed after it has ended, and all end eventually. Leader election depends on this.
func TestLeases(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a PostgreSQL and takes half a minute")
	}
	t.Parallel()
	st := newStage(t)
	seed := seedOf(t)
	for n := range uint64(2) { // with servers in this process, and in processes of their own
		t.Run(fmt.Sprintf("seed=%d", seed+n), func(t *testing.T) {
			p := makePlan(seed+n, 8*time.Second, st.possible())
			p.steps = slices.DeleteFunc(p.steps, func(s step) bool { return s.kind == compacts })
			l := &leaseholders{run: startRun(t, st, p), all: map[string]*holding{}}
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
	l.injectFaults(t.Context())
	// Faults or a slow machine may have left no time for renewals.
	l.awaitCount(t, &l.renewals, enoughRenewals)
	stopHolding()
	holds.Wait()
	l.awaitExpiry(t)
	l.awaitCount(t, &l.expired, 1)
	stopWatching()
	watches.Wait()

	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%v\n  %d leases, %d renewals, %d refused or unanswered, %d expired; connection faults: %v",
		l.plan, len(l.all), l.renewals, l.refused, l.expired, l.injected())
	for _, violation := range append(l.violations, l.failures...) {
		t.Error(violation)
	}
	if l.renewals < enoughRenewals || l.expired == 0 {
		t.Error("too few renewals or expiries to be conclusive")
	}
}

// enoughRenewals is how many renewals make a run conclusive.
const enoughRenewals = 10

// awaitCount waits up to a minute until count has reached enough.
func (l *leaseholders) awaitCount(t *testing.T, count *int, enough int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); wait(t.Context(), 20*time.Millisecond) {
		l.mu.Lock()
		reached := *count >= enough || len(l.violations) > 0
		l.mu.Unlock()
		if reached {
			return
		}
	}
}

func (l *leaseholders) violated(format string, args ...any) {
	l.violations = append(l.violations, fmt.Sprintf(format, args...))
}

// hold grants leases one after the other. It renews each for a while through any server, and then stops.
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
			l.violated("%s was deleted %v before the end of its lease, or renewed after its deletion", h.key, over.Sub(h.gone))
		}
		h.renewed = sent
		l.mu.Unlock()
	}
}

// mayFail records an error, and reports whether faults explain it. If the server does not find the lease,
// its TTL must be over.
func (l *leaseholders) mayFail(h *holding, err error, sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
	switch {
	case errors.Is(err, kv.ErrLeaseNotFound):
		if over := h.renewed.Add(h.ttl); time.Now().Before(over) {
			l.violated("%s: its lease was not found %v before its end", h.key, time.Until(over))
			return false
		}
	case !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome) && !errors.Is(err, kv.ErrClosed) &&
		!errors.Is(err, kv.ErrOverloaded) && !errors.Is(err, context.DeadlineExceeded):
		l.violated("%s: an error that no fault explains, %v after the request: %v", h.key, time.Since(sent), err)
		return false
	}
	return true
}

// watchLeases watches for deletions on one server.
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
						l.recordExpiry(string(e.KV.Key), now)
					}
				}
				next = max(next, r.Revision+1)
			}
		}
		cancel()
	}
}

// recordExpiry records a deletion. No client deletes these keys, so their leases have ended.
func (l *leaseholders) recordExpiry(key string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.all[key]
	if h == nil {
		l.violated("%s was deleted, but was never put", key)
		return
	}
	if !h.gone.IsZero() {
		return // another server's watch was first
	}
	h.gone = now
	l.expired++
	if over := h.renewed.Add(h.ttl); now.Before(over) {
		l.violated("%s was deleted %v before the end of its lease", key, over.Sub(now))
	}
}

// awaitExpiry waits until no key with a lease exists.
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
				err = fmt.Errorf("these keys still exist: %s", bytes.Join(keys, []byte(", ")))
			}
			l.fail("not all leases have ended %v after the last renewal: %v", recovery, err)
			return
		}
		wait(t.Context(), 50*time.Millisecond)
	}
}

// wait waits for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
