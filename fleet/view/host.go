package view

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

const (
	// idle is after how long without a request a server lets its caches go.
	idle = 5 * time.Minute
	// patience is how long a request waits for caches that have yet to be filled.
	patience = 30 * time.Second
)

// Config says what a Host needs.
type Config struct {
	// REST reaches the control plane with full rights. Required.
	REST *rest.Config
	// Sign makes a certificate of a cluster's syncer, for the key of a certificate
	// request whose signature is right. It returns PEM. Required.
	Sign func(cluster, credential string, request *x509.CertificateRequest) ([]byte, error)
	// Types keeps what syncers report of the types of their clusters. Required.
	Types Types
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker

	// open gives the caches instead of those over REST, until ctx ends.
	open func(ctx context.Context) (*fleet.Term, error)
}

// Types keeps what syncers report of the types that their clusters serve. The cluster is
// the one that the reporter is known to be of. What is wrong with a report is a
// BadRequest. All of it is safe to repeat.
type Types interface {
	// KeepTypes keeps which groups there are, and gives what is wanted besides.
	KeepTypes(ctx context.Context, term *fleet.Term, cluster *v1alpha1.Cluster, said fleet.TypesReport) (fleet.TypesWanted, error)
	// KeepGroup keeps what is in one of them.
	KeepGroup(ctx context.Context, term *fleet.Term, cluster *v1alpha1.Cluster, said fleet.GroupReport) error
}

// Host serves views. Each server of Atoll has one; they share nothing, and a syncer
// may call any. The caches that it serves from are filled when the first syncer comes,
// and let go when none has come for a while.
type Host struct {
	cfg Config

	mu      sync.Mutex
	ctx     context.Context // while Run runs
	running sync.WaitGroup
	caches  *caches
}

// caches are a Term and what is served from it.
type caches struct {
	ready chan struct{} // closed when term or err is set
	term  *fleet.Term
	err   error
	ctx   context.Context
	stop  context.CancelFunc

	// guarded by the Host's mutex:
	views map[string]*projection
	users int
	last  time.Time // that one came or went
}

// NewHost gives a Host that serves as long as it runs.
func NewHost(cfg Config) *Host {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.open == nil {
		cfg.REST = rest.CopyConfig(cfg.REST)
		cfg.REST.QPS, cfg.REST.Burst = -1, -1
		cfg.open = func(ctx context.Context) (*fleet.Term, error) {
			return fleet.NewTerm(ctx, fleet.Config{REST: cfg.REST, Log: cfg.Log, Clock: cfg.Clock})
		}
	}
	return &Host{cfg: cfg}
}

// Run lets the Host serve until ctx ends, and ends all watches then.
func (h *Host) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	ticker := h.cfg.Clock.NewTicker(idle / 5)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			h.mu.Lock()
			h.ctx = nil
			h.drop()
			h.mu.Unlock()
			h.running.Wait()
			return nil
		case <-ticker.C():
			h.mu.Lock()
			if c := h.caches; c != nil && c.users == 0 && h.cfg.Clock.Since(c.last) >= idle {
				h.drop()
			}
			h.mu.Unlock()
		}
	}
}

// drop lets the caches go. The caller holds h.mu.
func (h *Host) drop() {
	if h.caches != nil {
		h.caches.stop()
		h.caches = nil
	}
}

// errNotRunning: the server has not begun yet, or is about to stop.
var errNotRunning = errors.New("this server does not serve views at this moment; ask again")

// use gives the caches, filled, for as long as release is not called.
func (h *Host) use(ctx context.Context) (_ *caches, release func(), err error) {
	h.mu.Lock()
	if h.ctx == nil {
		h.mu.Unlock()
		return nil, nil, errNotRunning
	}
	if h.caches == nil {
		h.caches = h.fill()
	}
	c := h.caches
	c.users++
	h.mu.Unlock()
	release = func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		c.users--
		c.last = h.cfg.Clock.Now()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-c.ready:
	case <-ctx.Done():
		release()
		return nil, nil, errors.New("this server has not read yet what is bound to clusters; ask again")
	}
	if c.err != nil {
		release()
		return nil, nil, c.err
	}
	return c, release, nil
}

// fill begins to fill caches. The caller holds h.mu.
func (h *Host) fill() *caches {
	c := &caches{ready: make(chan struct{}), views: map[string]*projection{}, last: h.cfg.Clock.Now()}
	c.ctx, c.stop = context.WithCancel(h.ctx)
	h.running.Go(func() {
		term, err := h.cfg.open(c.ctx)
		if err == nil {
			err = term.OnInterpretation(func(_, _ *v1alpha1.ResourceInterpretation) { h.touchAll(c) })
		}
		if err == nil {
			err = term.OnCluster(func(was, is *v1alpha1.Cluster) {
				if is == nil {
					is = was
				}
				h.mu.Lock()
				p := c.views[is.Name]
				h.mu.Unlock()
				if p != nil {
					p.touch(ofCluster())
				}
			})
		}
		c.term, c.err = term, err
		close(c.ready)
		if err != nil {
			h.cfg.Log.Error("cannot read what is bound to clusters; the next syncer that comes has it tried again", "error", err)
			c.stop()
			h.mu.Lock()
			if h.caches == c {
				h.caches = nil
			}
			h.mu.Unlock()
		}
		<-c.ctx.Done()
		if term != nil {
			term.Wait()
		}
	})
	return c
}

// touchAll has all views looked at for what comes from no binding.
func (h *Host) touchAll(c *caches) {
	h.mu.Lock()
	all := slices.Collect(maps.Values(c.views))
	h.mu.Unlock()
	for _, p := range all {
		p.touch(ofCluster())
	}
}

// viewOf gives the view of a cluster as it is served.
func (h *Host) viewOf(c *caches, cluster string) (*projection, error) {
	h.mu.Lock()
	p := c.views[cluster]
	h.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p = project(Of(c.term, cluster))
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := c.views[cluster]; other != nil || c.ctx.Err() != nil {
		p.cancel()
		if other == nil {
			return nil, errNotRunning
		}
		return other, nil // somebody else came at the same moment
	}
	c.views[cluster] = p
	h.running.Go(func() { p.run(c.ctx) })
	p.touch(ofCluster()) // of changes before it was in the map it was not told
	return p, nil
}
