package view

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// idleTimeout is how long a server keeps its caches without a request.
	idleTimeout = 5 * time.Minute
	// cacheSyncTimeout is how long a request waits for caches to sync.
	cacheSyncTimeout = 30 * time.Second
)

// Config configures a Host.
type Config struct {
	// REST connects to the control plane with full permissions. Required.
	REST *rest.Config
	// Sign creates a certificate for a cluster's syncer with the key of a verified certificate
	// request. It returns PEM. Required.
	Sign Sign
	// Types stores the types that syncers report. Required.
	Types Types
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// ControlPlane claims the members.
	ControlPlane fleet.ControlPlane
	// Metrics may be nil.
	Metrics *Metrics
	// Answers returns a new source of the answers of webhooks. Without it, no webhook answers.
	Answers func() fleet.AnswerSource
	// Ask asks one question at once, for a syncer. Without it, questions of syncers are refused.
	Ask func(ctx context.Context, q interpret.Question) (interpret.Answer, error)
	// Tunnels serve the tunnels of syncers. Without them, syncers get none.
	Tunnels Tunnels
}

// Tunnels have the connections through which Atoll reaches clusters in mode Pull.
type Tunnels interface {
	// Accept makes a request a tunnel and returns. The caller has authenticated the cluster's syncer. The tunnel ends when valid
	// returns an error, or earlier. Then, and if there is no tunnel, ended is called once.
	Accept(w http.ResponseWriter, r *http.Request, cluster *v1alpha1.Cluster, valid func() error, ended func())
}

// Types stores the types of clusters as their syncers report them. The caller has authenticated
// the cluster. An invalid report is a BadRequest. All calls are idempotent.
type Types interface {
	// StoreTypes stores the list of API groups, and returns what else is requested.
	StoreTypes(ctx context.Context, session *fleet.Session, cluster *v1alpha1.Cluster, report fleet.TypesReport) (fleet.TypesWanted, error)
	// StoreGroup stores the content of one group.
	StoreGroup(ctx context.Context, session *fleet.Session, cluster *v1alpha1.Cluster, report fleet.GroupReport) error
}

// Host serves views. Each server of Atoll has one; they share nothing, and a syncer may connect
// to any. The caches are filled for the first syncer, and released after some time without
// requests.
type Host struct {
	cfg Config

	mu      sync.Mutex
	ctx     context.Context // while Run runs
	running sync.WaitGroup
	caches  *caches
	// confirming bounds the reads of Clusters for credentials that the caches do not accept.
	confirming *rate.Limiter
}

// caches are a session and the views that are served from it.
type caches struct {
	ready   chan struct{} // closed once session or err is set
	session *fleet.Session
	err     error
	ctx     context.Context
	stop    context.CancelFunc

	// Guarded by the Host's mutex:
	views    map[string]*projection
	users    int
	lastUsed time.Time // last time that a user came or left
}

// NewHost returns a Host that serves while Run runs.
func NewHost(cfg Config) *Host {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	cfg.REST = rest.CopyConfig(cfg.REST)
	cfg.REST.QPS, cfg.REST.Burst = -1, -1
	return &Host{cfg: cfg, confirming: rate.NewLimiter(confirmationsPerSecond, confirmationsAtOnce)}
}

// Run lets the Host serve until ctx ends, and then ends all watches.
func (h *Host) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	ticker := h.cfg.Clock.NewTicker(idleTimeout / 5)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			h.mu.Lock()
			h.ctx = nil
			h.releaseCaches()
			h.mu.Unlock()
			h.running.Wait()
			return nil
		case <-ticker.C():
			h.mu.Lock()
			if c := h.caches; c != nil && c.users == 0 && h.cfg.Clock.Since(c.lastUsed) >= idleTimeout {
				h.releaseCaches()
			}
			h.mu.Unlock()
		}
	}
}

// releaseCaches releases the caches. The caller holds h.mu.
func (h *Host) releaseCaches() {
	if h.caches != nil {
		h.caches.stop()
		h.caches = nil
	}
}

// errNotRunning means that the server has not started yet, or is stopping.
var errNotRunning = errors.New("this server does not serve views at the moment; retry")

// acquire returns the synced caches, which stay valid until release is called.
func (h *Host) acquire(ctx context.Context) (_ *caches, release func(), err error) {
	h.mu.Lock()
	if h.ctx == nil {
		h.mu.Unlock()
		return nil, nil, errNotRunning
	}
	if h.caches == nil {
		h.caches = h.openCaches()
	}
	c := h.caches
	c.users++
	h.mu.Unlock()
	release = func() { h.release(c) }
	ctx, cancel := context.WithTimeout(ctx, cacheSyncTimeout)
	defer cancel()
	select {
	case <-c.ready:
	case <-ctx.Done():
		release()
		return nil, nil, errors.New("this server has not read the bindings yet; retry")
	}
	if c.err != nil {
		release()
		return nil, nil, c.err
	}
	return c, release, nil
}

// hold keeps caches that the caller has acquired, until they have been released once more.
func (h *Host) hold(c *caches) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.users++
}

func (h *Host) release(c *caches) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.users--
	c.lastUsed = h.cfg.Clock.Now()
}

// openCaches starts to fill caches. The caller holds h.mu.
func (h *Host) openCaches() *caches {
	c := &caches{ready: make(chan struct{}), views: map[string]*projection{}, lastUsed: h.cfg.Clock.Now()}
	c.ctx, c.stop = context.WithCancel(h.ctx)
	h.running.Go(func() {
		session, err := fleet.NewSession(c.ctx, fleet.Config{REST: h.cfg.REST, Log: h.cfg.Log, Clock: h.cfg.Clock, ControlPlane: h.cfg.ControlPlane, Answers: h.cfg.Answers})
		if err == nil {
			err = session.Interpretations.OnChange(func(_, _ *v1alpha1.ResourceInterpretation) { h.markAllDirty(c) })
		}
		if err == nil {
			err = session.Clusters.OnChange(func(was, is *v1alpha1.Cluster) {
				if is == nil {
					is = was
					h.cfg.Metrics.forget(is.Name)
				}
				h.mu.Lock()
				p := c.views[is.Name]
				h.mu.Unlock()
				if p != nil {
					p.markDirty(clusterOrigin())
				}
			})
		}
		c.session, c.err = session, err
		close(c.ready)
		if err != nil {
			h.cfg.Log.Error("open caches for views failed; retrying on the next request", "error", err)
			c.stop()
			h.mu.Lock()
			if h.caches == c {
				h.caches = nil
			}
			h.mu.Unlock()
		}
		<-c.ctx.Done()
		if session != nil {
			session.Wait()
		}
	})
	return c
}

// markAllDirty marks the Cluster and interpretations of all views as changed.
func (h *Host) markAllDirty(c *caches) {
	h.mu.Lock()
	all := slices.Collect(maps.Values(c.views))
	h.mu.Unlock()
	for _, p := range all {
		p.markDirty(clusterOrigin())
	}
}

// viewOf returns the served view of a cluster.
func (h *Host) viewOf(c *caches, cluster string) (*projection, error) {
	h.mu.Lock()
	p := c.views[cluster]
	h.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p = newProjection(NewLocal(c.session, cluster))
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := c.views[cluster]; other != nil || c.ctx.Err() != nil {
		p.cancel()
		if other == nil {
			return nil, errNotRunning
		}
		return other, nil // created concurrently
	}
	c.views[cluster] = p
	h.running.Go(func() { p.run(c.ctx) })
	p.markDirty(clusterOrigin()) // it was not notified of changes before it was in the map
	return p, nil
}
