package tunnel

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"github.com/hashicorp/yamux"
	"golang.org/x/net/netutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// Endpoint is where an Agent opens its tunnel, and as whom.
type Endpoint struct {
	// URL of the cluster's view, which starts with https.
	URL string
	// TLS has the client certificate.
	TLS   *tls.Config
	Proxy func(*http.Request) (*url.URL, error)
	// Ended is done when the Endpoint should be read again: the certificate was renewed.
	Ended context.Context
}

// Agent is the end of a tunnel in a cluster.
type Agent struct {
	// Cluster is the name of the cluster.
	Cluster string
	// Endpoint returns where to connect to.
	Endpoint func() Endpoint
	// Member is the cluster. Requests have its credentials.
	Member *rest.Config
	Level  Level
	Log    *slog.Logger
	Clock  clock.WithTicker
}

// Delays between two attempts to open a tunnel. Many syncers lose theirs together when a server stops.
const (
	minRedial = 250 * time.Millisecond
	maxRedial = 10 * time.Second
)

// Run opens the tunnel, and opens it again when it is lost, until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	if a.Level == None {
		return nil
	}
	handler, err := newGate(a.Cluster, a.Level, a.Member)
	if err != nil {
		return fmt.Errorf("prepare the tunnel of cluster %s: %w", a.Cluster, err)
	}
	delays := wait.Backoff{Duration: minRedial, Factor: 2, Jitter: 1, Steps: 10, Cap: maxRedial}
	delay := delays
	said := ""
	for {
		began := a.Clock.Now()
		err := a.serve(ctx, handler, func() { said = ""; a.Log.Info("opened the tunnel to Atoll", "level", a.Level) })
		if ctx.Err() != nil {
			return nil
		}
		if a.Clock.Since(began) > maxRedial {
			delay = delays // it was open
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			a.Log.Warn("the tunnel to Atoll is not open; until it is, kubectl logs, exec and the like do not reach this cluster. Retrying", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.Clock.After(delay.Step()):
		}
	}
}

// serve opens a tunnel and serves it until it ends.
func (a *Agent) serve(ctx context.Context, handler http.Handler, opened func()) error {
	endpoint := a.Endpoint()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(endpoint.Ended, cancel)()
	conn, err := dial(ctx, endpoint.URL+"/tunnel", protocol, websocket.Dialer{TLSClientConfig: endpoint.TLS, Proxy: endpoint.Proxy}, nil)
	if err != nil {
		return err
	}
	session, err := yamux.Server(conn, yamuxConfig())
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { session.Close() })()
	opened()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: handshakeTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	err = server.Serve(netutil.LimitListener(session, maxStreams))
	_ = server.Close()
	if endpoint.Ended.Err() != nil {
		return nil // to open one with the new certificate
	}
	return fmt.Errorf("the tunnel was closed: %w", err)
}

// dial opens a WebSocket. A refusal of the server is returned with its message.
func dial(ctx context.Context, at, subprotocol string, dialer websocket.Dialer, header http.Header) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	dialer.Subprotocols, dialer.HandshakeTimeout = []string{subprotocol}, handshakeTimeout
	dialer.ReadBufferSize, dialer.WriteBufferSize = bufferBytes, bufferBytes
	dialer.TLSClientConfig = dialer.TLSClientConfig.Clone()
	dialer.TLSClientConfig.NextProtos = []string{"http/1.1"} // a WebSocket is an upgrade of it
	ws, answer, err := dialer.DialContext(ctx, "wss"+strings.TrimPrefix(at, "https"), header)
	if err != nil {
		return nil, refusal(answer, err)
	}
	if ws.Subprotocol() != subprotocol {
		return nil, errors.Join(fmt.Errorf("the server does not speak %s", subprotocol), ws.Close())
	}
	return newConn(ws), nil
}

// refusal returns the message of a server that refused a WebSocket.
func refusal(answer *http.Response, err error) error {
	if answer == nil {
		return err
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Message != "" {
		return errors.New(status.Message)
	}
	return fmt.Errorf("the server responded %s to the request for a tunnel: it may be older than this syncer", answer.Status)
}

// gate passes requests on to the cluster that the level includes.
type gate struct {
	cluster string
	level   Level
	member  *fleet.MemberProxy
}

func newGate(cluster string, level Level, member *rest.Config) (*gate, error) {
	to, err := fleet.NewMemberProxy(member)
	if err != nil {
		return nil, err
	}
	return &gate{cluster, level, to}, nil
}

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	in := describe(r)
	needs, accept := in.needs()
	if !g.level.includes(needs) {
		writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("the syncer of cluster %s does not pass on %s %.200s: its owner has set --reach %s, and this needs %s", g.cluster, in.method, in.path, g.level, needs))
		return
	}
	if accept != "" && g.level != All {
		r.Header.Set("Accept", accept)
	}
	g.member.Handler(r.URL.Path, failedMember{g.cluster}).ServeHTTP(w, r)
}

// failedMember responds when the cluster's API server does not.
type failedMember struct{ cluster string }

// Error implements proxy.ErrorResponder.
func (f failedMember) Error(w http.ResponseWriter, _ *http.Request, err error) {
	writeStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, fmt.Sprintf("the syncer of cluster %s does not reach its API server: %v", f.cluster, err))
}

func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}

// ServerPath returns the path at which a server passes streams of another one on to the syncer of a cluster.
func ServerPath(cluster string) string { return v1alpha1.TunnelsPath + cluster }
