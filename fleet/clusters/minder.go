package clusters

import (
	"context"
	"fmt"
	"sync"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// minder looks after one cluster: it probes it, watches its nodes, and runs its
// syncer.
type minder struct {
	c    *controller
	name string

	mu      sync.Mutex
	access  *fleet.Access
	stop    context.CancelFunc // ends what serves the present access
	health  health
	nodes   *nodes
	trouble string // why the syncer does not run
}

func newMinder(c *controller, name string, presumed bool) *minder {
	return &minder{c: c, name: name, health: health{presumed: presumed}}
}

// serve makes the minder use this access, or with nil none. With the access that
// it has already it goes on.
func (m *minder) serve(a *fleet.Access) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a != nil && m.access != nil && m.access.Digest == a.Digest {
		return
	}
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
	m.access, m.nodes, m.trouble = a, nil, ""
	if a == nil {
		return
	}
	if !m.health.probed.IsZero() {
		m.health = health{} // what the old access showed is no verdict on the new one
	}
	ctx, stop := context.WithCancel(m.c.ctx)
	m.stop = stop
	m.c.running.Go(func() { m.run(ctx, a) })
}

// observation is what a minder has to say about its cluster.
type observation struct {
	health  health
	count   func(*v1alpha1.ClusterStatus) // nodes and what they have
	problem *problem
}

// problem is what keeps a cluster from being Ready although no probe says so.
type problem struct{ reason, message string }

func (m *minder) observe(p *problem) observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p == nil && m.trouble != "" {
		p = &problem{v1alpha1.ReasonErrorStartingSyncer, m.trouble}
	}
	h := m.health
	h.last = m.nodes.comment(h.last)
	return observation{health: h, count: m.nodes.count, problem: p}
}

// run probes until ctx ends. The first successful probe starts the watch of the
// nodes and the syncer. Both outlive failures and resume by themselves, but by
// then pause for half a minute between attempts; so when the cluster turns Ready
// again they are started anew. They end when it turns out to be another cluster.
func (m *minder) run(ctx context.Context, a *fleet.Access) {
	p, err := newProber(a.REST, renewPush)
	if err != nil {
		m.record(ctx, result{at: m.c.Clock.Now(), reason: v1alpha1.ReasonErrorCreatingClient,
			message: "cannot make a client from the kubeconfig: " + err.Error() + ": give one that works here with `atoll join`"})
		return
	}
	probed, ok := m.c.probing.begin(ctx, m.c.Clock)
	if !ok {
		return
	}
	defer probed()
	ticker := m.c.Clock.NewTicker(probeEvery)
	defer ticker.Stop()
	stop := func() {}
	defer func() { stop() }()
	served := false
	for turn := 0; ctx.Err() == nil; turn++ {
		// One that did not answer may come back as another version.
		was := m.lastResult()
		r := m.identified(p.probe(ctx, was, !was.ready || turn%askWho == 0, m.c.Clock.Now()))
		probed()
		changed := m.record(ctx, r)
		switch {
		case r.reason == v1alpha1.ReasonWrongCluster:
			stop()
			stop, served = func() {}, false
		case r.ready && (!served || changed && (!was.ready || was.version != r.version || was.id != r.id)):
			stop()
			stop, served = m.start(ctx, a), true
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		}
	}
}

// identified turns down the answer of another cluster than the one that joined.
func (m *minder) identified(r result) result {
	cluster, known := m.c.Cluster(m.name)
	if !r.ready || !known {
		return r
	}
	if why := m.c.wrong(cluster, r.id); why != "" {
		r.ready, r.reason, r.message = false, v1alpha1.ReasonWrongCluster, why
	}
	return r
}

// start begins the watch of the nodes and the syncer; stop ends them.
func (m *minder) start(ctx context.Context, a *fleet.Access) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { m.runSyncer(ctx, a) })
	running.Go(func() { m.watchNodes(ctx, a) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (m *minder) lastResult() result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.health.last
}

// record takes in a probe and has the status written if there is news. It
// reports whether the verdict on the cluster changed.
func (m *minder) record(ctx context.Context, r result) (changed bool) {
	if ctx.Err() != nil {
		return false // it failed because we stopped
	}
	m.mu.Lock()
	changed = m.health.add(r)
	m.mu.Unlock()
	if changed {
		m.c.Log.Info("cluster changed", "cluster", m.name, "ready", r.ready, "reason", r.reason)
	}
	// Every probe, for the heartbeat and the nodes: it writes only what is new.
	m.c.queue.Add(m.name)
	return changed
}

func (m *minder) runSyncer(ctx context.Context, a *fleet.Access) {
	for ctx.Err() == nil {
		m.mu.Lock()
		m.trouble = ""
		m.mu.Unlock()
		caughtUp, ok := m.c.catching.begin(ctx, m.c.Clock)
		if !ok {
			return
		}
		err := m.c.syncer(ctx, m.c.Term, m.name, a.REST, caughtUp)
		caughtUp()
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		m.trouble = "the syncer stopped and is started again"
		if err != nil {
			m.trouble = fmt.Sprintf("the syncer does not start: %v: correct the kubeconfig with `atoll join`; it is tried again every %s", err, retrySyncer)
		}
		m.mu.Unlock()
		m.c.queue.Add(m.name)
		select {
		case <-ctx.Done():
			return
		case <-m.c.Clock.After(retrySyncer):
		}
	}
}
