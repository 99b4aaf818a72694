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
	// clientPause between two calls of a client: a history must stay small
	// enough to be decided.
	clientPause = 3 * time.Millisecond
	// callLimit is how long a client waits for an answer.
	callLimit = 1500 * time.Millisecond
	// recovery is how long it may take, after the last fault, until every server
	// answers and every watch has caught up.
	recovery = 30 * time.Second
	// searchLimit bounds the search for an order of the calls.
	searchLimit = 60 * time.Second
)

// run is one run.
type run struct {
	*stage
	plan     *plan
	servers  [servers]server
	recorder *history.Recorder
	// lives: a server is not killed before it has come back from the last time.
	lives  [servers]sync.Mutex
	before pgproxy.Counts // of the proxy, when the run began
	told   atomic.Int64   // the highest revision that a client was told

	mu     sync.Mutex
	counts map[stepKind]int
	broken []string // what went wrong that was not planned
}

// outcome is what came of a run.
type outcome struct {
	*history.Report
	steps    map[stepKind]int
	injected pgproxy.Counts
	recovery time.Duration // from the last fault until all had caught up
}

func (r *run) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, fmt.Sprintf(format, args...))
}

// begin starts three servers for a plan, all at the same moment, on a keyspace
// that is not there yet. They end with the test.
func begin(t *testing.T, st *stage, p *plan) *run {
	t.Helper()
	// No two runs share a keyspace, those of the same seed neither.
	keyspace := fmt.Sprintf("faults-%d-%d", p.seed, time.Now().UnixNano())
	r := &run{stage: st, plan: p, recorder: &history.Recorder{}, counts: map[stepKind]int{}}
	if st.proxy != nil {
		st.proxy.Set(p.weather.faults)
		r.before = st.proxy.Counts()
	}
	dir := t.TempDir()
	for n := range r.servers {
		name := serverName(n)
		url, err := st.urlFor(name)
		if err != nil {
			t.Fatal(err)
		}
		at := place{Name: name, URL: url, Keyspace: keyspace, Schema: st.schema, Poll: p.weather.poll, Jumps: p.jumpsOf(n), tamper: p.tamper}
		if p.processes {
			process := newProcess(dir, at)
			if st.network != nil {
				process.namespace = st.network.wires[n].namespace
			}
			r.servers[n] = process
		} else {
			l := &local{place: at, clock: newJumpyClock(at.Jumps, 0)}
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
	if len(r.broken) > 0 {
		t.Fatalf("%v\n%v", r.broken, p)
	}
	return r
}

// perform goes through a plan on a stage.
func perform(t *testing.T, st *stage, p *plan) (*run, *outcome) {
	t.Helper()
	r := begin(t, st, p)
	watching, stopWatching := context.WithCancel(t.Context())
	var watches sync.WaitGroup
	watchers := r.watch(watching, &watches)
	calling, stopCalling := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for id := range clients {
		calls.Go(func() { r.call(calling, id) })
	}
	r.harm(t.Context())
	for began := time.Now(); r.told.Load() < p.enough && time.Since(began) < recovery; {
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
	report.Violations = append(report.Violations, r.broken...)
	return r, &outcome{Report: report, steps: r.counts, injected: r.injected(), recovery: took}
}

// injected is what has happened on the connections of this run.
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

// each does something with all servers at once.
func (r *run) each(do func(n int)) {
	var wg sync.WaitGroup
	for n := range r.servers {
		wg.Go(func() { do(n) })
	}
	wg.Wait()
}

// watch starts watchers: on each server one over all keys, one over some and
// one over a single key.
func (r *run) watch(ctx context.Context, wg *sync.WaitGroup) []*history.Watcher {
	var all []*history.Watcher
	for n, s := range r.servers {
		some := kv.Span{Start: []byte(history.Key(1)), End: []byte(history.Key(4))}
		for _, w := range []*history.Watcher{
			r.recorder.NewWatcher("of all keys on "+serverName(n), history.Whole(), true),
			r.recorder.NewWatcher("of some keys on "+serverName(n), some, n > 0),
			r.recorder.NewWatcher("of one key on "+serverName(n), kv.Span{Start: []byte(history.Key(n))}, true),
		} {
			all = append(all, w)
			wg.Go(func() { w.Run(ctx, func(context.Context) (kv.Keyspace, error) { return s.keyspace() }) })
		}
	}
	return all
}

// call makes calls, now at this server and now at that.
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
			// Not ctx: the end of a run is no reason to leave a call open.
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
			answer := c.Step(limited, serverName(n), ks)
			cancel()
			err = answer.Err
			for told := r.told.Load(); answer.Revision > told && !r.told.CompareAndSwap(told, answer.Revision); told = r.told.Load() {
			}
		}
		if err != nil || choose.IntN(10) == 0 {
			n = choose.IntN(servers)
		}
	}
}

// harm goes through the steps, and undoes all of it at the end.
func (r *run) harm(ctx context.Context) {
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
		r.proxy.Set(pgproxy.Faults{Refuse: r.plan.weather.faults.Refuse})
	}
}

// do takes a step, and returns what ends it.
func (r *run) do(ctx context.Context, s step) (undo func()) {
	server := r.servers[s.server]
	var link *pgproxy.Link
	if r.proxy != nil {
		link = r.proxy.Link(serverName(s.server))
	}
	switch s.kind {
	case kills:
		r.lives[s.server].Lock()
		server.kill()
		return func() {
			defer r.lives[s.server].Unlock()
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
			link.Swallow(s.direction)
		} else {
			link.Divide(s.direction)
		}
		return link.Thaw
	case severs:
		wire := r.network.wires[s.server]
		if err := wire.cut(s.direction); err != nil {
			r.fail("%v", err)
			break
		}
		return func() {
			if err := wire.mend(s.direction); err != nil {
				r.fail("%v", err)
			}
		}
	case cuts:
		link.Cut()
	case jumps:
		server.jump()
	case storms:
		f := s.faults
		f.Refuse = r.plan.weather.faults.Refuse
		link.Set(f)
		return func() { link.Set(r.plan.weather.faults) }
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

// compact forgets what some watcher of everything has seen already; others may
// not have, and have to read anew.
func (r *run) compact(ctx context.Context, s step) {
	ks, err := r.servers[s.server].keyspace()
	rev := r.recorder.Reached()
	if err != nil || rev < 3 {
		return
	}
	// Sometimes everything, sometimes only what is old.
	if s.at.Milliseconds()%3 > 0 {
		rev -= min(rev-2, 100)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_ = r.recorder.Compact(ctx, ks, rev)
}

// settle waits until every server answers again, and returns the revision that
// the last of them is at.
func (r *run) settle(ctx context.Context) kv.Revision {
	var mu sync.Mutex
	var head kv.Revision
	r.each(func(n int) {
		c := r.recorder.NewClient(clients+n, r.plan.seed)
		for begin := time.Now(); ; {
			ks, err := r.servers[n].keyspace()
			if err == nil {
				// On a slow machine any answer is an answer.
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

// await waits until all watchers have come to a revision. That they have is
// checked with the rest.
func (r *run) await(watchers []*history.Watcher, rev kv.Revision) {
	begin := time.Now()
	for _, w := range watchers {
		for w.Reached() < rev && time.Since(begin) < r.plan.recovery {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
