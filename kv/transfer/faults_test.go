package transfer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
	"github.com/atoll-dev/atoll/kv/transfer"
)

// flaky fails a share of writes: some before they are done, some after, and it
// forgets a lease now and then.
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
		// As if it had ended while the keys were on their way.
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

// hurried is a clock whose pauses are over at once.
type hurried struct{ clock.RealClock }

func (hurried) After(time.Duration) <-chan time.Time {
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
		opts := transfer.Options{Clock: hurried{}, Existing: transfer.Mirror}
		// A lease that is revoked takes keys along that were there already: the
		// second time puts them again.
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
				t.Fatalf("seed %d: there is always something to put", seed)
			}
		}
		verified(t, src, res.Source, dst, opts)
	}
}

func TestCopyGivesUp(t *testing.T) {
	src, dst := open(t), open(t)
	src.put(t, "a", "1", 0)
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := transfer.Copy(t.Context(), src, dst, transfer.Options{Clock: hurried{}}); err == nil {
		t.Error("copied into a closed keyspace")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := transfer.Copy(ctx, src, open(t), transfer.Options{}); err == nil {
		t.Error("copied although canceled")
	}
}

// rounds is a clock that hands the pauses of one length to the test, to end them.
type rounds struct {
	clock.Clock
	length time.Duration
	paused chan chan time.Time
}

func (r rounds) After(d time.Duration) <-chan time.Time {
	if d != r.length {
		return r.Clock.After(d) // the follower's others, and the first, before it knows a lease
	}
	end := make(chan time.Time, 1)
	select {
	case <-r.paused: // given up for this one
	default:
	}
	r.paused <- end
	return end
}

// While following, the leases of the target live as long as those of the
// source, and no longer.
func TestFollowKeepsLeasesAlive(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	openWith := func() *mvcc.Keyspace {
		db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		table, err := db.Open(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{Clock: fake})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ks.Close() })
		return ks
	}
	src, dst := &store{Keyspace: openWith()}, openWith()
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
		_, err := transfer.Follow(ctx, src, dst, rev, opts, transfer.Follower{})
		done <- err
	}()
	soon := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within 20 s: %s", what)
			}
		}
	}
	for range 10 { // two and a half times the time to live
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
			case round := <-pauses.paused: // the one ended above was given up
				round <- fake.Now()
			default:
			}
			return l.Remaining == ttl
		})
	}
	// Now nobody renews it at the source.
	soon("the key ends with the lease", func() bool {
		fake.Step(time.Second)
		return len(state(t, src)) == 0 && len(state(t, dst)) == 0
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
