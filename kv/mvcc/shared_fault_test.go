package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func watchAll(t testing.TB, s *store, prev bool) kv.Watch {
	t.Helper()
	w, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: 2, PrevKV: prev})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// through reads a watch until it has delivered everything up to a revision, and formats the
// events.
func through(t testing.TB, w kv.Watch, rev kv.Revision) (out []string) {
	t.Helper()
	w.RequestProgress()
	last := kv.Revision(1)
	for {
		r := next(t, w)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if r.Revision < last {
			t.Fatalf("response of revision %d after %d", r.Revision, last)
		}
		for _, e := range r.Events {
			if e.KV.ModRevision < last || e.KV.ModRevision > r.Revision {
				t.Fatalf("event of revision %d in a response up to %d, after %d", e.KV.ModRevision, r.Revision, last)
			}
			out = append(out, fmt.Sprintf("%d %d %s=%s", e.KV.ModRevision, e.Type, e.KV.Key, e.KV.Value))
		}
		last = r.Revision
		if r.Progress && r.Revision >= rev {
			return out
		}
	}
}

// history formats the log like through formats events.
func (c *cluster) history(t testing.TB) (out []string, rev kv.Revision) {
	t.Helper()
	changes, head, err := c.conns[0].Table.Changes(t.Context(), 1, 1<<62, 1<<30, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range changes {
		typ := kv.EventPut
		if ch.Deleted {
			typ = kv.EventDelete
		}
		out = append(out, fmt.Sprintf("%d %d %s=%s", ch.KV.ModRevision, typ, ch.KV.Key, ch.KV.Value))
	}
	return out, head.Revision
}

// TestSharedFaults has three servers whose calls fail at random, before or after they take
// effect, with writers and watches on each. Every acknowledged write is there once, no
// refused one is, and every watch delivers exactly the log.
func TestSharedFaults(t *testing.T) {
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			for seed := range uint64(*seeds) {
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { testSharedFaults(t, n.net, seed) })
			}
		})
	}
}

func testSharedFaults(t *testing.T, net network, seed uint64) {
	const writers, each = 12, 60
	c := openCluster(t, 3, net, defaults)
	var watches []kv.Watch
	for i, s := range c.servers {
		for n := range 4 {
			watches = append(watches, watchAll(t, s, (i+n)%2 == 0))
		}
	}
	time.Sleep(time.Millisecond)
	for i, l := range c.conns {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		fault := func(bool) error {
			mu.Lock()
			defer mu.Unlock()
			if rng.IntN(100) < 10 {
				return fmt.Errorf("%w: injected", kv.ErrUnavailable)
			}
			return nil
		}
		l.fault.Store(&fault)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	done, refused := map[string]bool{}, map[string]bool{}
	for w := range writers {
		wg.Go(func() {
			s := c.servers[w%len(c.servers)]
			for i := range each {
				key, value := fmt.Sprintf("k%d", i%5), fmt.Sprintf("%d-%d", w, i)
				_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put(key, value)}})
				mu.Lock()
				switch {
				case err == nil:
					done[value] = true
				case errors.Is(err, kv.ErrUnknownOutcome):
				case errors.Is(err, kv.ErrUnavailable):
					refused[value] = true
				default:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, l := range c.conns {
		l.failWith(nil)
	}
	want, rev := c.history(t)
	times := map[string]int{}
	for _, line := range want {
		var at, typ int
		var key, value string
		if _, err := fmt.Sscanf(line, "%d %d k%1s=%s", &at, &typ, &key, &value); err != nil {
			t.Fatal(line, err)
		}
		times[value]++
	}
	for value := range done {
		if times[value] != 1 {
			t.Errorf("%s was acknowledged and exists %d times", value, times[value])
		}
	}
	for value := range refused {
		if times[value] != 0 {
			t.Errorf("%s was refused and exists %d times", value, times[value])
		}
	}
	if len(done) == 0 || len(refused) == 0 {
		t.Errorf("%d acknowledged, %d refused: the test proves nothing", len(done), len(refused))
	}
	for i, w := range watches {
		got := watched(t, c, i, w, rev)
		if len(got) != len(want) {
			t.Errorf("watch %d delivered %d of %d changes", i, len(got), len(want))
			continue
		}
		for j := range got {
			if got[j] != want[j] {
				t.Errorf("watch %d: change %d is %s, want %s", i, j, got[j], want[j])
				break
			}
		}
	}
}

// watched reads a watch to the end. A watch that failed while it read the log, as it may,
// is restarted where it ended, as clients do.
func watched(t *testing.T, c *cluster, i int, w kv.Watch, rev kv.Revision) (out []string) {
	t.Helper()
	from := kv.Revision(2)
	w.RequestProgress()
	for {
		r := next(t, w)
		if r.Err != nil {
			expectErr(t, r.Err, kv.ErrUnavailable)
			again, err := c.servers[i%3].Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: from})
			if err != nil {
				t.Fatal(err)
			}
			w = again
			w.RequestProgress()
			continue
		}
		for _, e := range r.Events {
			if e.KV.ModRevision < from {
				t.Errorf("event of revision %d after the watch had reached %d", e.KV.ModRevision, from-1)
			}
			out = append(out, fmt.Sprintf("%d %d %s=%s", e.KV.ModRevision, e.Type, e.KV.Key, e.KV.Value))
		}
		from = r.Revision + 1
		if r.Progress && r.Revision >= rev {
			return out
		}
	}
}

// TestSharedProgress checks that progress covers everything that any server acknowledged
// before the request, even if no hint arrives.
func TestSharedProgress(t *testing.T) {
	c := openCluster(t, 2, network{lost: 100, poll: time.Hour}, defaults)
	w, err := c.servers[1].Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("k"))})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		rev := c.servers[0].put(fmt.Sprint("k", i), "v")
		w.RequestProgress()
		expect(t, "event", events(t, w, 1), fmt.Sprintf("put k%d=v@%d ", i, rev))
		for {
			if r := next(t, w); r.Err != nil || !r.Progress {
				t.Fatalf("%+v", r)
			} else if r.Revision >= rev {
				break
			}
		}
	}
}

// TestSharedOwnCommits checks that a server does not read its own commits from the log,
// even if hints mention them.
func TestSharedOwnCommits(t *testing.T) {
	c := openCluster(t, 2, network{poll: time.Millisecond, delay: 2 * time.Millisecond}, defaults)
	watches := []kv.Watch{watchAll(t, c.servers[0], true), watchAll(t, c.servers[1], false)}
	through(t, watches[0], 1)
	through(t, watches[1], 1)
	before := c.conns[0].logReads.Load()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 25 {
				c.servers[0].put(fmt.Sprint("k", i), fmt.Sprint(n))
				c.servers[0].list("a", "z", 0)
			}
		})
	}
	wg.Wait()
	want, rev := c.history(t)
	for i, w := range watches {
		if got := through(t, w, rev); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("watch %d: %v, want %v", i, got, want)
		}
	}
	if n := c.conns[0].logReads.Load() - before; n > 20 {
		t.Errorf("the writing server read the log %d times", n)
	}
	if n := c.conns[1].logRows.Load(); n < 200 || n > 400 {
		t.Errorf("the other server read %d rows for 200 changes", n)
	}
}

// TestSharedInterleaved checks that commits beyond a gap are published from memory once the
// gap is filled.
func TestSharedInterleaved(t *testing.T) {
	c := openCluster(t, 2, network{poll: 10 * time.Millisecond, delay: time.Millisecond}, defaults)
	watches := []kv.Watch{watchAll(t, c.servers[0], false), watchAll(t, c.servers[1], true)}
	for _, w := range watches {
		through(t, w, 1)
	}
	var wg sync.WaitGroup
	for i, s := range c.servers {
		wg.Go(func() {
			for n := range 200 {
				s.put(fmt.Sprint("k", i), fmt.Sprint(n))
			}
		})
	}
	wg.Wait()
	want, rev := c.history(t)
	for i, w := range watches {
		if got := through(t, w, rev); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("watch %d: %v, want %v", i, got, want)
		}
		if n := c.conns[i].logRows.Load(); n >= 400 {
			t.Errorf("server %d read %d rows for 200 changes of the other server, and 200 of its own", i, n)
		}
	}
}

// TestSharedBehind checks that while a table lacks acknowledged state, watches end and all
// calls fail, and that they work again when it is back.
func TestSharedBehind(t *testing.T) {
	var mu sync.Mutex
	var reported []string
	reports := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(reported)
	}
	c := openCluster(t, 2, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		if i != 0 {
			return mvcc.Options{}
		}
		return mvcc.Options{Observer: mvcc.Observer{Behind: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			what := "behind"
			if err == nil {
				what = "back"
			}
			reported = append(reported, what)
		}}}
	})
	s := c.servers[0]
	s.put("k", "1")
	w := watchAll(t, s, false)
	expect(t, "before", events(t, w, 1), "put k=1@2 ")
	lost := fmt.Errorf("keyspace: %w: restore it", kv.ErrBehind)
	c.conns[0].failWith(lost)
	_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", "2")}})
	expectErr(t, err, kv.ErrBehind)
	if r := next(t, w); !errors.Is(r.Err, kv.ErrBehind) {
		t.Errorf("watch: %+v", r)
	}
	if _, ok := <-w.Responses(); ok {
		t.Error("the watch continues")
	}
	for name, err := range map[string]error{
		"range":        second(s.Range(t.Context(), kv.RangeRequest{Span: span("k", "")})),
		"txn":          second(s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", "2")}})),
		"read-only":    second(s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{get("k", "")}})),
		"watch":        second(s.Watch(t.Context(), kv.WatchRequest{Span: span("k", "")})),
		"compact":      second(s.Compact(t.Context(), 2, true)),
		"grant":        second(s.Grant(t.Context(), 1, time.Hour)),
		"revoke":       second(s.Revoke(t.Context(), 1)),
		"keep alive":   second(s.KeepAlive(t.Context(), 1)),
		"time to live": second(s.TimeToLive(t.Context(), 1, false)),
		"status":       second(s.Status(t.Context())),
	} {
		if !errors.Is(err, kv.ErrBehind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, _, err = s.LeaseList(t.Context())
	expectErr(t, err, kv.ErrBehind)
	expect(t, "another server", c.servers[1].list("k", "", 0), "k=1@2(2,1) n=1")

	c.conns[0].failWith(nil)
	// Calls that were under way may fail, and suspend it once more.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err = s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{put("k", "2")}}); err == nil {
			if w, err = s.Watch(t.Context(), kv.WatchRequest{Span: span("k", ""), StartRevision: 3}); err == nil {
				if r := next(t, w); r.Err == nil && len(r.Events) > 0 && string(r.Events[0].KV.Value) == "2" {
					break
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not served again: ", err)
		}
	}
	if all := reports(); all[0] != "behind" || all[len(all)-1] != "back" {
		t.Error("reported:", all)
	}
}

func second[T any](_ T, err error) error { return err }

// TestSharedCutOff checks that a server that cannot reach the table ends its watches, and
// serves again when it can.
func TestSharedCutOff(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	c := openCluster(t, 2, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		if i == 0 {
			return mvcc.Options{Clock: clock}
		}
		return mvcc.Options{}
	})
	w := watchAll(t, c.servers[0], false)
	c.servers[0].put("k", "1")
	expect(t, "before", events(t, w, 1), "put k=1@2 ")
	c.conns[0].failWith(kv.ErrUnavailable)
	c.servers[1].put("k", "2")
	var end kv.WatchResponse
	for deadline := time.Now().Add(20 * time.Second); end.Err == nil; {
		clock.Step(time.Second)
		select {
		case end = <-w.Responses():
		case <-time.After(time.Millisecond):
			if time.Now().After(deadline) {
				t.Fatal("the watch does not end")
			}
		}
	}
	expectErr(t, end.Err, kv.ErrUnavailable)
	if end.Revision != 2 {
		t.Errorf("%+v", end)
	}
	c.conns[0].failWith(nil)
	again, err := c.servers[0].Watch(t.Context(), kv.WatchRequest{Span: span("k", ""), StartRevision: 3})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "again", events(t, again, 1), "put k=2@3 ")
}

// TestSharedOutage checks that with a long WatchSilence watches survive an outage and miss
// nothing.
func TestSharedOutage(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	c := openCluster(t, 2, network{poll: 10 * time.Millisecond}, func(i int) mvcc.Options {
		if i == 0 {
			return mvcc.Options{Clock: clock, WatchSilence: 5 * time.Minute}
		}
		return mvcc.Options{}
	})
	w := watchAll(t, c.servers[0], false)
	c.servers[0].put("k", "0")
	expect(t, "before", events(t, w, 1), "put k=0@2 ")
	c.conns[0].failWith(kv.ErrUnavailable)
	c.servers[1].put("k", "1")
	for range 120 {
		clock.Step(time.Second)
		select {
		case r := <-w.Responses():
			t.Fatalf("during the outage: %+v", r)
		case <-time.After(time.Millisecond):
		}
	}
	c.servers[1].put("k", "2")
	c.conns[0].failWith(nil)
	got := ""
	for deadline := time.Now().Add(20 * time.Second); got != "1@3 2@4 "; {
		clock.Step(time.Second) // for callers that wait to retry
		select {
		case r := <-w.Responses():
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			for _, e := range r.Events {
				got += fmt.Sprintf("%s@%d ", e.KV.Value, e.KV.ModRevision)
			}
		case <-time.After(5 * time.Millisecond):
			if time.Now().After(deadline) {
				t.Fatalf("after the outage: %q", got)
			}
		}
	}
}

// TestSharedCompaction checks that history compacted by one server is refused by all
// others.
func TestSharedCompaction(t *testing.T) {
	c := openCluster(t, 3, network{lost: 100, poll: time.Hour}, defaults)
	for i := range 10 {
		c.servers[i%3].put("k", fmt.Sprint(i))
	}
	live := watchAll(t, c.servers[1], false)
	events(t, live, 10)
	if _, err := c.servers[0].Compact(t.Context(), 8, true); err != nil {
		t.Fatal(err)
	}
	w, err := c.servers[1].Watch(t.Context(), kv.WatchRequest{Span: span("k", ""), StartRevision: 7})
	if err != nil {
		t.Fatal(err)
	}
	if r := next(t, w); !errors.Is(r.Err, kv.ErrCompacted) || r.CompactRevision != 8 {
		t.Errorf("%+v", r)
	}
	_, err = c.servers[2].Compact(t.Context(), 8, false)
	expectErr(t, err, kv.ErrCompacted)
	c.servers[2].put("k", "last")
	live.RequestProgress()
	expect(t, "live", events(t, live, 1), "put k=last@12 ")
}

// TestPendingBytes checks that the size of pending writes is bounded.
func TestPendingBytes(t *testing.T) {
	s, f := openFault(t, mvcc.Options{MaxPendingBytes: 10_000})
	entered, leave := make(chan struct{}, 10), make(chan struct{})
	f.before = func() error { entered <- struct{}{}; <-leave; return nil }
	var wg sync.WaitGroup
	wg.Go(func() { s.put("a", "") })
	<-entered
	big := string(make([]byte, 8_000))
	for i := range 2 { // the first stays in the queue though its caller gave up
		few, stop := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := s.Txn(few, kv.TxnRequest{Then: []kv.Op{put("c", big)}})
		stop()
		expectErr(t, err, []error{context.DeadlineExceeded, kv.ErrOverloaded}[i])
	}
	f.before = nil
	close(leave)
	wg.Wait()
	s.put("d", "")                            // so that the queue is empty
	s.put("e", string(make([]byte, 100_000))) // a single write may have any size
}
