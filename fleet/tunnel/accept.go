package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"github.com/hashicorp/yamux"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// checkInterval is how often a server checks that the syncer of a tunnel may still have it.
const checkInterval = 5 * time.Second

// Accept makes a request the tunnel of a cluster's syncer, whose identity the caller has checked, and returns. A goroutine of
// the Hub serves the tunnel until either end closes it, valid returns an error, or the Hub is closed. Then, and if there is no
// tunnel, the Hub calls ended, once.
//
// A handler that served the tunnel itself would keep its goroutine, with the deep stack of the filters before it and
// everything that the request refers to. For the same reason, valid and ended should not refer to the request. Its context is
// done when the handler returns, and the tunnel does not depend on it. To upstream's filters, the request ends here:
//
//   - The audit log has the stages ResponseStarted and ResponseComplete when the tunnel opens, both with the code 101.
//   - Flow control, the timeout filter, and the wait group of requests ignore long-running requests, and still do.
//   - http.Server.Shutdown neither closes nor waits for hijacked connections, so Close has to end the tunnels.
//   - The filter that recovers from panics does not see those of valid and ended.
func (h *Hub) Accept(w http.ResponseWriter, r *http.Request, cluster *v1alpha1.Cluster, valid func() error, ended func()) {
	if h.ctx.Err() != nil {
		defer ended()
		writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", fmt.Sprintf("this server is stopping and accepts no tunnel of cluster %s; retry", cluster.Name))
		return
	}
	conn, err := h.upgrade(w, r, protocol)
	if err != nil {
		ended() // upgrade has responded
		return
	}
	t := &accepted{hub: h, cluster: cluster.Name, uid: cluster.UID, conn: conn, valid: valid, ended: ended}
	if !h.start(t.run) {
		_ = conn.Close()
		ended()
	}
}

// upgrade makes a request a connection.
func (h *Hub) upgrade(w http.ResponseWriter, r *http.Request, subprotocol string) (net.Conn, error) {
	u := websocket.Upgrader{HandshakeTimeout: handshakeTimeout, Subprotocols: []string{subprotocol},
		ReadBufferSize: readBufferBytes, WriteBufferSize: bufferBytes, WriteBufferPool: &h.writeBuffers,
		Error: func(w http.ResponseWriter, _ *http.Request, code int, reason error) {
			writeStatus(w, code, "BadRequest", "this is the path of a tunnel, which a syncer opens: "+reason.Error())
		}}
	ws, err := u.Upgrade(w, r, nil)
	if err != nil {
		return nil, err
	}
	conn := newConn(ws)
	if ws.Subprotocol() != subprotocol {
		return nil, errors.Join(fmt.Errorf("the client does not speak %s", subprotocol), conn.Close())
	}
	return conn, nil
}

// start runs f in a goroutine of the Hub; false if the Hub is closed.
func (h *Hub) start(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.running.Go(f)
	return true
}

// accepted is a tunnel that a syncer opened to this server.
type accepted struct {
	hub     *Hub
	cluster string
	uid     types.UID
	conn    net.Conn
	valid   func() error
	ended   func()
}

// run serves the tunnel until it ends.
func (t *accepted) run() {
	defer t.ended()
	session, err := yamux.Client(t.conn, yamuxConfig())
	if err != nil {
		_ = t.conn.Close()
		return
	}
	defer session.Close()
	if !t.hub.keep(t.cluster, session) {
		return
	}
	defer t.hub.drop(t.cluster, session)
	defer t.hub.cfg.Metrics.opened(t.cluster)()
	t.hub.cfg.Log.Info("a syncer opened its tunnel", "cluster", t.cluster)
	ctx, cancel := context.WithCancel(t.hub.ctx)
	defer cancel()
	t.hub.running.Go(func() { t.hub.peers.announce(ctx, t.cluster, t.uid) })
	t.await(ctx, session)
}

// await returns when the tunnel has ended or must end.
func (t *accepted) await(ctx context.Context, session *yamux.Session) {
	ticker := t.hub.cfg.Clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-session.CloseChan():
			t.hub.cfg.Log.Info("a syncer's tunnel ended", "cluster", t.cluster)
			return
		case <-ctx.Done():
			return
		case <-ticker.C():
			if err := t.valid(); err != nil {
				t.hub.cfg.Log.Warn("closed a syncer's tunnel", "cluster", t.cluster, "reason", err)
				return
			}
		}
	}
}

// keep makes a session the cluster's. A former one is closed: its syncer has lost it, or was replaced.
func (h *Hub) keep(cluster string, session *yamux.Session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if former := h.sessions[cluster]; former != nil {
		h.running.Go(func() { _ = former.Close() })
	}
	h.sessions[cluster] = session
	return true
}

func (h *Hub) drop(cluster string, session *yamux.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[cluster] == session {
		delete(h.sessions, cluster)
	}
}

// Close ends all tunnels and waits for their goroutines. Their syncers then open others, to other servers. It waits no longer
// than a few seconds for a syncer that does not read: closing a WebSocket and a TLS connection is bounded.
func (h *Hub) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.running.Wait()
	return nil
}
