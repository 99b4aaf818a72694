package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// faultTable is a table whose commits can be delayed, run twice, or failed.
type faultTable struct {
	kv.Table
	// before is called before a commit; an error fails the commit.
	before func() error
	// after is called after a successful commit; an error replaces its result.
	after func() error
	twice bool
	reads atomic.Int64 // of the log
}

func (f *faultTable) Exclusive() bool { return true }

func (f *faultTable) Update(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) error {
	if f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	if f.twice {
		// Like a database that requires a transaction to be retried.
		errAgain := errors.New("again")
		if err := f.Table.Update(ctx, prefetch, func(tx kv.Tx) error {
			if err := fn(tx); err != nil {
				return err
			}
			return errAgain
		}); !errors.Is(err, errAgain) {
			return err
		}
	}
	err := f.Table.Update(ctx, prefetch, fn)
	if err == nil && f.after != nil {
		err = f.after()
	}
	return err
}

func (f *faultTable) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) ([]kv.Change, kv.Head, error) {
	f.reads.Add(1)
	return f.Table.Changes(ctx, after, upTo, limit, withPrev)
}

func openFault(t testing.TB, opts mvcc.Options) (*store, *faultTable) {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	f := &faultTable{Table: table}
	k, err := mvcc.Open(context.Background(), f, db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return &store{k, t, db}, f
}

// TestUnknownOutcome checks that a commit that is reported lost may have happened. The
// engine returns the error, discards its in-memory state, and watches miss nothing.
func TestUnknownOutcome(t *testing.T) {
	s, f := openFault(t, mvcc.Options{})
	w, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("k")), PrevKV: true})
	if err != nil {
		t.Fatal(err)
	}
	s.put("k", "1")
	f.after = func() error { return fmt.Errorf("commit: %w: the reply was lost", kv.ErrUnknownOutcome) }
	_, err = s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", "2")}})
	expectErr(t, err, kv.ErrUnknownOutcome)
	expect(t, "read back", s.list("k", "", 0), "k=2@3(2,2) n=1")
	f.after = nil
	if res := s.txn(kv.TxnRequest{If: []kv.Compare{ifMod("k", 3)}, Then: []kv.Op{put("k", "3")}}); !res.Succeeded {
		t.Error("compared with a discarded state")
	}
	expect(t, "watch", events(t, w, 3), "put k=1@2 put k=2@3<1 put k=3@4<2 ")
}

// TestUnavailable checks that after any other error nothing has happened, also in memory.
func TestUnavailable(t *testing.T) {
	s, f := openFault(t, mvcc.Options{})
	s.put("k", "1")
	f.before = func() error { return kv.ErrUnavailable }
	_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", "2")}})
	expectErr(t, err, kv.ErrUnavailable)
	_, err = s.Grant(t.Context(), 5, time.Hour)
	expectErr(t, err, kv.ErrUnavailable)
	_, err = s.TimeToLive(t.Context(), 5, false)
	expectErr(t, err, kv.ErrLeaseNotFound)
	f.before = nil
	expect(t, "unchanged", s.list("k", "", 0), "k=1@2(2,1) n=1")
	if rev := s.put("k", "2"); rev != 3 {
		t.Errorf("revision %d", rev)
	}
}

func TestRetriedCommit(t *testing.T) {
	s, f := openFault(t, mvcc.Options{})
	f.twice = true
	s.put("k", "1")
	res := s.txn(kv.TxnRequest{If: []kv.Compare{ifMod("k", 2)}, Then: []kv.Op{put("k", "2"), get("k", "")}})
	expect(t, "second", show(res.Results[1].Range), "k=2@3(2,2) n=1")
	if _, err := s.Grant(t.Context(), 5, time.Hour); err != nil {
		t.Error(err)
	}
}

// TestPendingWrites checks that a caller can give up a pending write, and that no more
// writes than the bound are pending.
func TestPendingWrites(t *testing.T) {
	s, f := openFault(t, mvcc.Options{MaxPending: 2})
	entered, leave := make(chan struct{}, 10), make(chan struct{})
	f.before = func() error { entered <- struct{}{}; <-leave; return nil }
	var wg sync.WaitGroup
	wg.Go(func() { s.Txn(context.Background(), kv.TxnRequest{Then: []kv.Op{put("a", "")}}) })
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{}, 2)
	for range 2 {
		wg.Go(func() {
			started <- struct{}{}
			_, err := s.Txn(ctx, kv.TxnRequest{Then: []kv.Op{put("b", "")}})
			// The writes below may have filled the queue first.
			if !errors.Is(err, kv.ErrOverloaded) {
				expectErr(t, err, context.Canceled)
			}
		})
	}
	<-started
	<-started
	for { // both are queued once a third is refused
		few, stop := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := s.Txn(few, kv.TxnRequest{Then: []kv.Op{put("c", "")}})
		stop()
		if errors.Is(err, kv.ErrOverloaded) {
			break
		}
		expectErr(t, err, context.DeadlineExceeded)
	}
	cancel()
	close(leave)
	wg.Wait()
	f.before = nil
	if got := s.list("b", "", 0); got != "n=0" {
		t.Error("the write was canceled, but happened:", got)
	}
}

// TestSlowWatch checks that a watch without a reader delays no one and takes bounded
// memory. When it is finally read, no event is missing or repeated.
func TestSlowWatch(t *testing.T) {
	t.Parallel()
	s, f := openFault(t, mvcc.Options{})
	const n = 12_000
	slow, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("k"))})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var count atomic.Int64
	for range 100 {
		wg.Go(func() {
			for count.Add(1) <= n {
				s.put("k", "v")
			}
		})
	}
	wg.Wait()
	last := kv.Revision(1)
	for last < n+1 {
		r := next(t, slow)
		for _, e := range r.Events {
			if e.KV.ModRevision != last+1 {
				t.Fatalf("revision %d after %d", e.KV.ModRevision, last)
			}
			last++
		}
		if r.Revision < last {
			t.Fatalf("response of revision %d with events up to %d", r.Revision, last)
		}
	}
	if f.reads.Load() == 0 {
		t.Error("the log was never read: is the queue unbounded?")
	}
	slow.RequestProgress()
	if r := next(t, slow); !r.Progress || r.Revision != n+1 {
		t.Errorf("%+v", r)
	}
}

// TestManyWatches starts and ends watches of all kinds while keys change.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	s, _ := openFault(t, mvcc.Options{})
	const keys, rounds, enough = 20, 40, 10
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for c := range 4 {
		wg.Go(func() {
			for i := c; ; i++ {
				select {
				case <-stop:
					return
				default:
					s.put(fmt.Sprintf("k%02d", i%keys), "v")
				}
			}
		})
	}
	var watches sync.WaitGroup
	for c := range 16 {
		watches.Go(func() {
			for i := range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				from, to := (c+i)%keys, (c*i)%keys
				req := kv.WatchRequest{Span: span(fmt.Sprintf("k%02d", from), fmt.Sprintf("k%02d", to)), PrevKV: i%2 == 0}
				if from >= to {
					req.Span = span(fmt.Sprintf("k%02d", from), "")
				}
				if i%3 == 0 {
					req.StartRevision = 2
				}
				w, err := s.Watch(ctx, req)
				if err != nil {
					t.Error(err)
				}
				var last kv.Revision
				for n := 0; n < enough; {
					r := next(t, w)
					for _, e := range r.Events {
						if e.KV.ModRevision <= last {
							t.Errorf("revision %d after %d", e.KV.ModRevision, last)
						}
						if !req.Span.Contains(e.KV.Key) {
							t.Errorf("key %s", e.KV.Key)
						}
						if req.PrevKV && e.KV.Version > 1 && e.Prev == nil {
							t.Errorf("revision %d has no previous value", e.KV.ModRevision)
						}
						last = e.KV.ModRevision
						n++
					}
				}
				cancel()
			}
		})
	}
	watches.Wait()
	close(stop)
	wg.Wait()
}

func TestPeriodicProgress(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	s := openStore(t, mvcc.Options{Clock: clock})
	w, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("k")), ProgressNotify: true})
	if err != nil {
		t.Fatal(err)
	}
	s.put("other", "v")
	for deadline := time.Now().Add(20 * time.Second); ; {
		clock.Step(10 * time.Minute)
		select {
		case r := <-w.Responses():
			if !r.Progress || r.Revision != 2 {
				t.Errorf("%+v", r)
			}
			return
		case <-time.After(time.Millisecond): // the ticker may not have existed yet
			if time.Now().After(deadline) {
				t.Fatal("no progress")
			}
		}
	}
}

// TestRestart checks that after a restart leases have their full TTL and history exists.
func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.db")
	clock := clocktesting.NewFakeClock(time.Now())
	opts := mvcc.Options{Clock: clock}
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	k, err := mvcc.Open(t.Context(), table, db, opts)
	if err != nil {
		t.Fatal(err)
	}
	s := &store{k, t, db}
	if _, err := s.Grant(t.Context(), 7, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	s.txn(kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("a"), Lease: 7}}}})
	clock.Step(9 * time.Second)
	k.Close()
	_, err = k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("a", "")}})
	expectErr(t, err, kv.ErrClosed)
	_, err = k.Watch(t.Context(), kv.WatchRequest{Span: span("a", "")})
	expectErr(t, err, kv.ErrClosed)
	db.Close()

	s = openPath(t, path, opts)
	clock.Step(9 * time.Second)
	if l, err := s.TimeToLive(t.Context(), 7, false); err != nil || l.Remaining != time.Second {
		t.Error(l, err)
	}
	w, err := s.Watch(t.Context(), kv.WatchRequest{Span: span("a", ""), StartRevision: 1})
	if err != nil {
		t.Fatal(err)
	}
	for !clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	clock.Step(2 * time.Second)
	expect(t, "watch", events(t, w, 2), "put a=@2 del a=@3 ")
}

// TestPages reads a list page by page while it changes; every count is exact.
func TestPages(t *testing.T) {
	s := openStore(t, mvcc.Options{})
	for i := range 25 {
		s.put(fmt.Sprintf("k%02d", i), "v")
	}
	req := kv.RangeRequest{Span: kv.Prefix([]byte("k")), Limit: 10}
	want := int64(25)
	for _, n := range []int{10, 10, 5} {
		res, err := s.Range(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.KVs) != n || res.Count != want || res.More != (n == 10) {
			t.Errorf("page of %d, %d counted, more %v; want %d and %d", len(res.KVs), res.Count, res.More, n, want)
		}
		if req.Revision == 0 {
			req.Revision = res.Revision
		}
		want -= int64(n)
		req.Start = append(append([]byte(nil), res.KVs[n-1].Key...), 0)
		s.del("k05", "k07")
		s.del("k21", "k23")
		s.put("k99", "new")
	}
}

func TestAutoCompact(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	s := openStore(t, mvcc.Options{Clock: clock, Retention: mvcc.Retention{Age: time.Hour}})
	s.put("a", "1")
	s.put("a", "2")
	for deadline := time.Now().Add(20 * time.Second); ; {
		clock.Step(6 * time.Minute)
		time.Sleep(time.Millisecond)
		st, err := s.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.Compacted == 3 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", st)
		}
	}
}
