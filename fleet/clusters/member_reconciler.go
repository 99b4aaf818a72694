package clusters

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// memberReconciler manages one cluster: it probes it, watches its nodes, and runs its syncer.
type memberReconciler struct {
	c    *controller
	name string

	mu          sync.Mutex
	access      *fleet.Access
	stop        context.CancelFunc // stops the goroutines of the current access
	health      health
	nodes       *nodes
	syncerError string // why the syncer does not run
}

func newMemberReconciler(c *controller, name string, presumed bool) *memberReconciler {
	return &memberReconciler{c: c, name: name, health: health{assumedReady: presumed}}
}

// serve switches to the given access, or to none with nil. It does nothing if the access is
// unchanged.
func (m *memberReconciler) serve(a *fleet.Access) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a != nil && m.access != nil && m.access.Digest == a.Digest {
		return
	}
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
	m.access, m.nodes, m.syncerError = a, nil, ""
	if a == nil {
		return
	}
	if !m.health.probed.IsZero() {
		m.health = health{} // results with the old access do not apply to the new one
	}
	ctx, stop := context.WithCancel(m.c.ctx)
	m.stop = stop
	m.c.running.Go(func() { m.run(ctx, a) })
}

// observation is the observed state of a cluster.
type observation struct {
	health  health
	count   func(*v1alpha1.ClusterStatus) // sets the nodes and their resources
	problem *problem
}

// problem is a reason why a cluster is not Ready, regardless of its probes.
type problem struct{ reason, message string }

func (m *memberReconciler) observe(p *problem) observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p == nil && m.syncerError != "" {
		p = &problem{v1alpha1.ReasonErrorStartingSyncer, m.syncerError}
	}
	h := m.health
	h.last = m.nodes.annotate(h.last)
	return observation{health: h, count: m.count(m.nodes), problem: p}
}

// run probes until ctx ends. The first successful probe starts the watch of the nodes and the
// syncer. Both survive failures, but then they retry only every half minute, so they are restarted
// when the cluster turns Ready again. They are stopped when another cluster answers, or the cluster
// belongs to another control plane.
func (m *memberReconciler) run(ctx context.Context, a *fleet.Access) {
	p, err := newProber(a.REST, renewPush)
	var claims *claims
	if err == nil {
		claims, err = m.c.newClaims(a)
	}
	if err != nil {
		m.record(ctx, result{at: m.c.Clock.Now(), reason: v1alpha1.ReasonErrorCreatingClient,
			message: "cannot create a client from the kubeconfig: " + err.Error() + ": provide a working kubeconfig with `atoll join`"})
		return
	}
	probed, ok := m.c.probeLimiter.acquire(ctx, m.c.Clock)
	if !ok {
		return
	}
	defer probed()
	ticker := m.c.Clock.NewTicker(probeInterval)
	defer ticker.Stop()
	stop := func() {}
	defer func() { stop() }()
	served := false
	for turn := 0; ctx.Err() == nil; turn++ {
		// After an outage, the cluster may have another version.
		was := m.lastResult()
		began := m.c.Clock.Now()
		r, known := m.claimed(ctx, claims, m.identified(p.probe(ctx, was, !was.ready || turn%versionProbes == 0, began), was))
		probed()
		if ctx.Err() == nil {
			m.c.metrics.probed(m.name, r, m.c.Clock.Since(began))
		}
		changed := known && m.record(ctx, r)
		switch {
		case !known:
		case r.excludes():
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

// identified rejects the result of another cluster than the one that joined. last is the last result:
// the cache may not have the ID that was accepted with it yet, and would accept every ID until then.
func (m *memberReconciler) identified(r, last result) result {
	cluster, known := m.c.Clusters.Get(m.name)
	if !r.ready || !known {
		return r
	}
	if cluster.Status.ID == "" && last.ready {
		cluster = cluster.DeepCopy()
		cluster.Status.ID = last.id
	}
	if why := m.c.identityProblem(cluster, r.id); why != "" {
		r.ready, r.reason, r.message = false, v1alpha1.ReasonWrongCluster, why
	}
	return r
}

// claimed claims the member. known is false while it is undecided whether that is possible.
func (m *memberReconciler) claimed(ctx context.Context, claims *claims, r result) (_ result, known bool) {
	cluster, exists := m.c.Clusters.Get(m.name)
	if !exists {
		return r, true
	}
	return claims.check(ctx, cluster, r)
}

// leave releases the member, so that another control plane can claim it.
func (m *memberReconciler) leave(ctx context.Context) error {
	m.mu.Lock()
	access := m.access
	m.mu.Unlock()
	if access == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	claims, err := m.c.newClaims(access)
	if err == nil {
		err = claims.leave(ctx)
	}
	if err != nil {
		return fmt.Errorf("delete Lease %s/%s in cluster %s: %w", metav1.NamespaceSystem, v1alpha1.ClaimLease, m.name, err)
	}
	return nil
}

// removeNamespaces deletes the fleet's empty namespaces in the member. Without access, it does nothing.
func (m *memberReconciler) removeNamespaces(ctx context.Context) error {
	m.mu.Lock()
	access := m.access
	m.mu.Unlock()
	if access == nil {
		return nil
	}
	return m.c.removeNamespaces(ctx, m.c.Session, m.name, access.REST)
}

// start starts the watch of the nodes and the syncer. stop stops them.
func (m *memberReconciler) start(ctx context.Context, a *fleet.Access) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { m.runSyncer(ctx, a) })
	running.Go(func() { m.watchNodes(ctx, a) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (m *memberReconciler) lastResult() result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.health.last
}

// record stores the result of a probe, and triggers a status write. It reports whether the
// cluster's health changed.
func (m *memberReconciler) record(ctx context.Context, r result) (changed bool) {
	if ctx.Err() != nil {
		return false // the probe failed because ctx ended
	}
	m.mu.Lock()
	changed = m.health.add(r)
	m.mu.Unlock()
	if changed {
		m.c.Log.Info("cluster health changed", "cluster", m.name, "ready", r.ready, "reason", r.reason)
	}
	// Reconcile after every probe, to refresh LastProbeTime and the nodes. Only changes are
	// written.
	m.c.queue.Add(m.name)
	return changed
}

func (m *memberReconciler) runSyncer(ctx context.Context, a *fleet.Access) {
	for ctx.Err() == nil {
		m.mu.Lock()
		m.syncerError = ""
		m.mu.Unlock()
		caughtUp, ok := m.c.catchUpLimiter.acquire(ctx, m.c.Clock)
		if !ok {
			return
		}
		err := m.c.syncer(ctx, m.c.Session, m.name, a.REST, caughtUp)
		caughtUp()
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		m.syncerError = "the syncer stopped and is being restarted"
		if err != nil {
			m.syncerError = fmt.Sprintf("the syncer cannot start: %v: correct the kubeconfig with `atoll join`; retrying every %s", err, retrySyncer)
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
