package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/pgproxy"
	"github.com/atoll-dev/atoll/test/history"
)

const (
	clients = 8
	// clientPause is the time between two calls of a client. A history must stay small enough for the
	// search.
	clientPause = 3 * time.Millisecond
	// callLimit limits how long a client waits for an answer.
	callLimit = 1500 * time.Millisecond
	// recovery limits the time after the last fault until every server answers and every watch has
	// caught up.
	recovery = 30 * time.Second
	// searchLimit bounds the search for an order of the calls.
	searchLimit = 60 * time.Second
)

// run is one run of a plan.
type run struct {
	*stage
	plan     *plan
	servers  [servers]server
	recorder *history.Recorder
	// restarting is held while a server is down, so that it is not killed twice.
	restarting [servers]sync.Mutex
	before     pgproxy.Counts // of the proxy, when the run began
	newest     atomic.Int64   // the highest revision in an answer to a client

	mu       sync.Mutex
	counts   map[stepKind]int
	failures []string // failures that no step planned
}

// outcome is the result of a run.
type outcome struct {
	*history.Report
	steps    map[stepKind]int
	injected pgproxy.Counts
	recovery time.Duration // from the last fault until all had caught up
}

func (r *run) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// startRun starts three servers for a plan, concurrently, on a new keyspace. They end with the test.
func startRun(t *testing.T, st *stage, p *plan) *run {
	t.Helper()
	// No two runs share a keyspace, not even those with the same seed.
	keyspace := fmt.Sprintf("faults-%d-%d", p.seed, time.Now().UnixNano())
	r := &run{stage: st, plan: p, recorder: &history.Recorder{}, counts: map[stepKind]int{}}
	if st.proxy != nil {
		st.proxy.Set(p.conditions.faults)
		r.before = st.proxy.Counts()
	}
	dir := t.TempDir()
	for n := range r.servers {
		name := serverName(n)
		url, err := st.urlFor(name)
		if err != nil {
			t.Fatal(err)
		}
		at := serverConfig{Name: name, URL: url, Keyspace: keyspace, Schema: st.schema, Poll: p.conditions.poll, Jumps: p.jumpsOf(n), tamper: p.tamper}
		if p.processes {
			process := newProcess(dir, at)
			if st.network != nil {
				process.namespace = st.network.wires[n].namespace
			}
			r.servers[n] = process
		} else {
			l := &local{config: at, clock: newJumpyClock(at.Jumps, 0)}
			if st.proxy != nil {
				l.link = st.proxy.Link(name)
			}
			r.servers[n] = l
		}
	}
	t.Cleanup(func() {
		for _, s := range r.servers {
			if err := s.close(); err != nil {
				t.Error(err)
			}
		}
	})
	starting, cancel := context.WithTimeout(t.Context(), recovery)
	defer cancel()
	r.each(func(n int) {
		if err := r.servers[n].start(starting); err != nil {
			r.fail("%v", err)
		}
	})
	if len(r.failures) > 0 {
		t.Fatalf("%v\n%v", r.failures, p)
	}
	return r
}

// perform performs a plan on a stage.
func perform(t *testing.T, st *stage, p *plan) (*run, *outcome) {
	t.Helper()
	r := startRun(t, st, p)
	watching, stopWatching := context.WithCancel(t.Context())
	var watches sync.WaitGroup
	watchers := r.watch(watching, &watches)
	calling, stopCalling := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for id := range clients {
		calls.Go(func() { r.call(calling, id) })
	}
	r.injectFaults(t.Context())
	for began := time.Now(); r.newest.Load() < p.minRevision && time.Since(began) < recovery; {
		time.Sleep(10 * time.Millisecond)
	}
	healed := time.Now()
	stopCalling()
	calls.Wait()
	head := r.settle(t.Context())
	r.await(watchers, head)
	took := time.Since(healed)
	stopWatching()
	watches.Wait()

	report := r.recorder.Check(searchLimit)
	report.Violations = append(report.Violations, r.failures...)
	return r, &outcome{Report: report, steps: r.counts, injected: r.injected(), recovery: took}
}

// injected returns the connection faults of this run.
func (r *run) injected() pgproxy.Counts {
	if r.proxy == nil {
		return pgproxy.Counts{}
	}
	counts := r.proxy.Counts()
	for kind, n := range r.before {
		if counts[kind] -= n; counts[kind] == 0 {
			delete(counts, kind)
		}
	}
	return counts
}

// each calls do for all servers at once.
func (r *run) each(do func(n int)) {
	var wg sync.WaitGroup
	for n := range r.servers {
		wg.Go(func() { do(n) })
	}
	wg.Wait()
}

// watch starts three watchers on each server: over all keys, over some and over a single key.
func (r *run) watch(ctx context.Context, wg *sync.WaitGroup) []*history.Watcher {
	var all []*history.Watcher
	for n, s := range r.servers {
		some := kv.Span{Start: []byte(history.Key(1)), End: []byte(history.Key(4))}
		for _, w := range []*history.Watcher{
			r.recorder.NewWatcher("of all keys on "+serverName(n), history.AllKeys(), true),
			r.recorder.NewWatcher("of some keys on "+serverName(n), some, n > 0),
			r.recorder.NewWatcher("of one key on "+serverName(n), kv.Span{Start: []byte(history.Key(n))}, true),
		} {
			all = append(all, w)
			wg.Go(func() { w.Run(ctx, func(context.Context) (kv.Keyspace, error) { return s.keyspace() }) })
		}
	}
	return all
}

// call makes calls, and changes the server now and then.
func (r *run) call(ctx context.Context, id int) {
	c := r.recorder.NewClient(id, r.plan.seed)
	choose := rand.New(rand.NewPCG(r.plan.seed, 1000+uint64(id)))
	tick := time.NewTicker(clientPause)
	defer tick.Stop()
	n := id % servers
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ks, err := r.servers[n].keyspace()
		if err == nil {
			// Not ctx: the end of the run must not leave a call open.
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
			answer := c.Step(limited, serverName(n), ks)
			cancel()
			err = answer.Err
			for told := r.newest.Load(); answer.Revision > told && !r.newest.CompareAndSwap(told, answer.Revision); told = r.newest.Load() {
			}
		}
		if err != nil || choose.IntN(10) == 0 {
			n = choose.IntN(servers)
		}
	}
}

// injectFaults performs the steps, and ends all faults.
func (r *run) injectFaults(ctx context.Context) {
	begin := time.Now()
	var wg sync.WaitGroup
	for _, s := range r.plan.steps {
		time.Sleep(time.Until(begin.Add(s.at)))
		r.mu.Lock()
		r.counts[s.kind]++
		r.mu.Unlock()
		wg.Go(func() {
			undo := r.do(ctx, s)
			time.Sleep(s.lasts)
			undo()
		})
	}
	time.Sleep(time.Until(begin.Add(r.plan.lasts)))
	wg.Wait()
	if r.proxy != nil {
		r.proxy.Set(pgproxy.Faults{Refuse: r.plan.conditions.faults.Refuse})
	}
}

// do performs a step, and returns a function that ends it.
func (r *run) do(ctx context.Context, s step) (undo func()) {
	server := r.servers[s.server]
	var link *pgproxy.Link
	if r.proxy != nil {
		link = r.proxy.Link(serverName(s.server))
	}
	switch s.kind {
	case kills:
		r.restarting[s.server].Lock()
		server.kill()
		return func() {
			defer r.restarting[s.server].Unlock()
			ctx, cancel := context.WithTimeout(ctx, recovery)
			defer cancel()
			if err := server.start(ctx); err != nil {
				r.fail("%v", err)
			}
		}
	case freezes:
		server.freeze()
		return server.thaw
	case partitions:
		if s.lossy {
			link.Blackhole(s.direction)
		} else {
			link.Partition(s.direction)
		}
		return link.Thaw
	case severs:
		wire := r.network.wires[s.server]
		if err := wire.cut(s.direction); err != nil {
			r.fail("%v", err)
			break
		}
		return func() {
			if err := wire.restore(s.direction); err != nil {
				r.fail("%v", err)
			}
		}
	case cuts:
		link.Cut()
	case jumps:
		server.jump()
	case storms:
		f := s.faults
		f.Refuse = r.plan.conditions.faults.Refuse
		link.Set(f)
		return func() { link.Set(r.plan.conditions.faults) }
	case crashes:
		if err := r.restart(ctx); err != nil {
			r.fail("%v", err)
		}
	case pauses:
		if err := r.database.Pause(); err != nil {
			r.fail("%v", err)
		}
		return func() {
			if err := r.database.Continue(); err != nil {
				r.fail("%v", err)
			}
		}
	case compacts:
		r.compact(ctx, s)
	}
	return func() {}
}

// compact compacts revisions that some watcher over all keys has got. Other watchers may not have them
// yet and must relist.
func (r *run) compact(ctx context.Context, s step) {
	ks, err := r.servers[s.server].keyspace()
	rev := r.recorder.Delivered()
	if err != nil || rev < 3 {
		return
	}
	// Sometimes all revisions, sometimes only old ones.
	if s.at.Milliseconds()%3 > 0 {
		rev -= min(rev-2, 100)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_ = r.recorder.Compact(ctx, ks, rev)
}

// settle waits until every server answers again, and returns the highest revision of their answers.
func (r *run) settle(ctx context.Context) kv.Revision {
	var mu sync.Mutex
	var head kv.Revision
	r.each(func(n int) {
		c := r.recorder.NewClient(clients+n, r.plan.seed)
		for begin := time.Now(); ; {
			ks, err := r.servers[n].keyspace()
			if err == nil {
				// On a slow machine, any answer will do.
				limited, cancel := context.WithTimeout(ctx, r.plan.recovery/2)
				call := c.List(limited, serverName(n), ks)
				cancel()
				if err = call.Err; err == nil {
					mu.Lock()
					head = max(head, call.Revision)
					mu.Unlock()
					return
				}
			}
			if time.Since(begin) > r.plan.recovery {
				r.fail("server %s does not answer, %v after the last fault: %v", serverName(n), r.plan.recovery, err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return head
}

// await waits until all watchers have reached a revision. Check reports those that have not.
func (r *run) await(watchers []*history.Watcher, rev kv.Revision) {
	begin := time.Now()
	for _, w := range watchers {
		for w.Reached() < rev && time.Since(begin) < r.plan.recovery {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
