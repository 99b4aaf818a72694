package aggregate

import (
	"context"
	"net"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/utils/clock"
)

// minConnectionAge is the age from which a connection is closed. Younger ones are kept,
// so that a member without another server does not reconnect for every request.
const minConnectionAge = 10 * time.Second

type connectionKey struct{}

// connection is stored in the request's context.
type connection struct {
	clock  clock.PassiveClock
	opened time.Time
}

// ConnContext is the ConnContext of the http.Server that runs a Handler. It records
// when a connection was opened.
func ConnContext(clk clock.PassiveClock) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, connection{clk, clk.Now()})
	}
}

// reconnectOn503 makes the member's API server reconnect after a 503. It would
// otherwise keep its connection for as long as that lasts, even after the Service
// routes to another server. This server, cut off from its datastore, would keep the
// connection open.
func reconnectOn503(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	c, ok := r.Context().Value(connectionKey{}).(connection)
	if !ok || c.clock.Since(c.opened) < minConnectionAge {
		return w
	}
	return responsewriter.WrapForHTTP1Or2(&reconnectWriter{w})
}

type reconnectWriter struct{ http.ResponseWriter }

func (h *reconnectWriter) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *reconnectWriter) WriteHeader(code int) {
	if code == http.StatusServiceUnavailable {
		// In HTTP/2 the server sends a GOAWAY: requests in flight continue.
		h.Header().Set("Connection", "close")
	}
	h.ResponseWriter.WriteHeader(code)
}
