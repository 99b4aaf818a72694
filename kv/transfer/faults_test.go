package transfer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/transfer"
)

// flaky fails a share of writes, some before they are done and some after, and occasionally
// loses a lease.
type flaky struct {
	kv.Keyspace
	mu   sync.Mutex
	rand *rand.Rand
}

func (f *flaky) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	f.mu.Lock()
	dice := f.rand.IntN(10)
	f.mu.Unlock()
	switch dice {
	case 0:
		return nil, fmt.Errorf("injected: %w", kv.ErrUnavailable)
	case 1:
		if _, err := f.Keyspace.Txn(ctx, req); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("injected: %w", kv.ErrUnknownOutcome)
	case 2:
		// As if the lease had expired during the copy.
		for _, op := range req.Then {
			if op.Put != nil && op.Put.Lease != 0 {
				if _, err := f.Revoke(ctx, op.Put.Lease); err != nil {
					return nil, err
				}
				break
			}
		}
	}
	return f.Keyspace.Txn(ctx, req)
}

// instantClock is a clock whose pauses end at once.
type instantClock struct{ clock.RealClock }

func (instantClock) After(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c
}

func TestCopyToATargetThatFails(t *testing.T) {
	t.Parallel()
	src := open(t)
	fill(t, src, 1500)
	for seed := range uint64(5) {
		dst := open(t)
		target := &flaky{Keyspace: dst, rand: rand.New(rand.NewPCG(seed, 0))}
		opts := transfer.Options{Clock: instantClock{}, Existing: transfer.Mirror}
		// A revoked lease also deletes keys copied earlier: the second round puts them
		// again.
		var res *transfer.Result
		for round := 0; ; round++ {
			var err error
			if res, err = transfer.Copy(t.Context(), src, target, opts); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if res.Put == 0 {
				break
			}
			if round == 20 {
				t.Fatalf("seed %d: each round puts keys again", seed)
			}
		}
		verified(t, src, res.Source, dst, opts)
	}
}

func TestCopyReturnsPermanentErrors(t *testing.T) {
	src, dst := open(t), open(t)
	src.put(t, "a", "1", 0)
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := transfer.Copy(t.Context(), src, dst, transfer.Options{Clock: instantClock{}}); err == nil {
		t.Error("copied into a closed keyspace")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := transfer.Copy(ctx, src, open(t), transfer.Options{}); err == nil {
		t.Error("copied although canceled")
	}
}

// rounds is a clock that passes the pauses of one length to the test, which ends them.
type rounds struct {
	clock.Clock
	length time.Duration
	paused chan chan time.Time
}

func (r rounds) After(d time.Duration) <-chan time.Time {
	if d != r.length {
		return r.Clock.After(d) // the follower's other pauses, and the first one, before it has a lease
	}
	end := make(chan time.Time, 1)
	select {
	case <-r.paused: // this pause was abandoned
	default:
	}
	r.paused <- end
	return end
}

// TestFollowKeepsLeasesAlive checks that during Follow the leases of the target live
// exactly as long as those of the source.
func TestFollowKeepsLeasesAlive(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	opened := mvcc.Options{Clock: fake}
	src, dst := openWith(t, 0, opened), openWith(t, 0, opened)
	const ttl = 20 * time.Second
	if _, err := src.Grant(t.Context(), 7, ttl); err != nil {
		t.Fatal(err)
	}
	rev := src.put(t, "a", "1", 7)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	pauses := rounds{fake, ttl / 4, make(chan chan time.Time, 1)}
	opts := transfer.Options{Clock: pauses}
	res, err := transfer.Copy(ctx, src, dst, opts)
	if err != nil || res.Source != rev {
		t.Fatalf("copied %+v, %v", res, err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := transfer.Follow(ctx, src, dst, rev, opts, transfer.FollowHooks{})
		done <- err
	}()
	soon := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("timed out after 20 s: %s", what)
			}
		}
	}
	for range 10 { // two and a half times the TTL
		round := <-pauses.paused
		fake.Step(ttl / 4)
		if _, err := src.KeepAlive(ctx, 7); err != nil {
			t.Fatal(err)
		}
		round <- fake.Now()
		soon("the lease is renewed in the target", func() bool {
			l, err := dst.TimeToLive(ctx, 7, false)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case round := <-pauses.paused: // the pause ended above was abandoned
				round <- fake.Now()
			default:
			}
			return l.Remaining == ttl
		})
	}
	// From now on no one renews it at the source.
	soon("the key is deleted with the lease", func() bool {
		fake.Step(time.Second)
		return len(state(t, src)) == 0 && len(state(t, dst)) == 0
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
