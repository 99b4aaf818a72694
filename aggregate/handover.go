package aggregate

import (
	"context"
	"net"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/utils/clock"
)

// oldEnough is the age from which a connection is given up. Younger ones are not, so
// that a member which has no other server does not connect anew for every request.
const oldEnough = 10 * time.Second

type connectionKey struct{}

// connection is what the context of a request says of how it came.
type connection struct {
	clock clock.PassiveClock
	since time.Time
}

// ConnContext is for the http.Server of a Handler: it notes since when there is a
// connection.
func ConnContext(clk clock.PassiveClock) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, connection{clk, clk.Now()})
	}
}

// handOver has the member's API server connect anew after a 503. It would go on
// with the connection that it has for as long as that lasts, also when another server has
// come to stand behind the address; and this one, cut off from its datastore,
// stays there.
func handOver(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	c, ok := r.Context().Value(connectionKey{}).(connection)
	if !ok || c.clock.Since(c.since) < oldEnough {
		return w
	}
	return responsewriter.WrapForHTTP1Or2(&handingOver{w})
}

type handingOver struct{ http.ResponseWriter }

func (h *handingOver) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *handingOver) WriteHeader(code int) {
	if code == http.StatusServiceUnavailable {
		// In HTTP/2 the server makes a GOAWAY of it: requests under way go on.
		h.Header().Set("Connection", "close")
	}
	h.ResponseWriter.WriteHeader(code)
}
