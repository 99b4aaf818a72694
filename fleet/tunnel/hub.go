package tunnel

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/hashicorp/yamux"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// HubConfig configures a Hub.
type HubConfig struct {
	// Identity is the name of this server, and Address is where other servers reach it, as HOST:PORT.
	Identity, Address string
	// Client of the control plane, once the API is available.
	Client func() (kubernetes.Interface, error)
	// PeerTLS returns the configuration of connections to other servers.
	PeerTLS func() (*tls.Config, error)
	Log     *slog.Logger
	Clock   clock.WithTicker
	// Metrics may be nil.
	Metrics *Metrics
}

// Hub has the tunnels of one server, and reaches those of the others.
type Hub struct {
	cfg   HubConfig
	peers *peers
	// ctx is done when the Hub is closed.
	ctx  context.Context
	stop context.CancelFunc
	// running are the goroutines of the tunnels.
	running sync.WaitGroup
	// writeBuffers are used while a message is written. A tunnel that is idle has none.
	writeBuffers sync.Pool

	mu       sync.Mutex
	sessions map[string]*yamux.Session // by cluster
	closed   bool
}

// NewHub returns a Hub without tunnels.
func NewHub(cfg HubConfig) *Hub {
	h := &Hub{cfg: cfg, sessions: map[string]*yamux.Session{}}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.peers = &peers{cfg: &h.cfg}
	return h
}

func (h *Hub) own(cluster string) *yamux.Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions[cluster]
}

// Open returns how many tunnels this server has.
func (h *Hub) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions)
}

// Connected reports whether the syncer of a cluster has opened a tunnel to a server. It may have lost it a moment ago.
func (h *Hub) Connected(ctx context.Context, cluster string) bool {
	if h.own(cluster) != nil {
		return true
	}
	_, ok := h.peers.holder(ctx, cluster)
	return ok
}

// Dial opens a connection to the syncer of a cluster, through the tunnel of this server or of another one.
func (h *Hub) Dial(ctx context.Context, cluster string) (net.Conn, error) {
	if session := h.own(cluster); session != nil {
		return open(ctx, cluster, session)
	}
	holder, ok := h.peers.holder(ctx, cluster)
	if !ok {
		return nil, noTunnel(cluster)
	}
	return h.peers.dial(ctx, cluster, holder)
}

func noTunnel(cluster string) error {
	return fmt.Errorf("the syncer of cluster %s has no tunnel to Atoll: it is not running, is older than this server, or runs with --reach none", cluster)
}

// open opens a stream. It does not wait for the other end longer than ctx permits.
func open(ctx context.Context, cluster string, session *yamux.Session) (net.Conn, error) {
	if session.NumStreams() >= maxStreams {
		return nil, fmt.Errorf("the tunnel of cluster %s transports %d connections already: close some, or retry", cluster, maxStreams)
	}
	type result struct {
		stream *yamux.Stream
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		stream, err := session.OpenStream()
		opened <- result{stream, err}
	}()
	select {
	case got := <-opened:
		if got.err != nil {
			return nil, fmt.Errorf("the tunnel of cluster %s was lost: %w", cluster, got.err)
		}
		return got.stream, nil
	case <-ctx.Done():
		go func() {
			if got := <-opened; got.err == nil {
				_ = got.stream.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// ServePeer passes a stream of another server on to the syncer of a cluster. It does not ask a third server.
func (h *Hub) ServePeer(w http.ResponseWriter, r *http.Request, cluster string) {
	session := h.own(cluster)
	if session == nil {
		writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", noTunnel(cluster).Error())
		return
	}
	stream, err := open(r.Context(), cluster, session)
	if err != nil {
		writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", err.Error())
		return
	}
	defer stream.Close()
	conn, err := h.upgrade(w, r, peerProtocol)
	if err != nil {
		return // it has responded
	}
	join(conn, stream)
}

// join copies between two connections until one of them ends, and closes both.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = a.Close()
			_ = b.Close()
		})
	}
	both.Wait()
}
