package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// connections tracks the connections from members to this server. A member's API server
// keeps a connection open even after it has been told to call other servers. Watches on
// it would continue, but get no events while this server is cut off from its datastore.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is one connection from a member.
type connection struct {
	net.Conn
	// closing ends when the connection is about to be closed.
	closing    context.Context
	endWatches context.CancelFunc

	mu       sync.Mutex
	requests int           // in flight, without watches
	idle     chan struct{} // closed while there are none
}

type connectionKey struct{}

// track is the server's http.Server.ConnState.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.of(conn)
	case http.StateClosed, http.StateHijacked:
		c.mu.Lock()
		defer c.mu.Unlock()
		if closed := c.open[conn]; closed != nil {
			closed.endWatches()
			delete(c.open, conn)
		}
	}
}

// of returns the connection of a net.Conn, which it begins to track.
func (c *connections) of(conn net.Conn) *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	if known == nil {
		if c.open == nil {
			c.open = map[net.Conn]*connection{}
		}
		known = &connection{Conn: conn, idle: make(chan struct{})}
		known.closing, known.endWatches = context.WithCancel(context.Background())
		close(known.idle)
		c.open[conn] = known
	}
	return known
}

// connContext is the server's http.Server.ConnContext.
func (c *connections) connContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c.of(conn))
}

// handler counts the requests that next serves, so that closeAll does not cut off an
// answer between its header and its body. The member's client would get a broken answer
// then, instead of one that says to try again.
func (c *connections) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connectionKey{}).(*connection)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if conn.closing.Err() != nil {
			w.Header().Set("Connection", "close") // over HTTP/2, the server sends GOAWAY
		}
		if watches(r) {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(conn.closing, cancel)()
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		conn.begin()
		defer conn.end()
		next.ServeHTTP(w, r)
	})
}

// watches reports whether a request is a watch, which would not end by itself.
func watches(r *http.Request) bool {
	value, ok := r.URL.Query()["watch"]
	return ok && r.Method == http.MethodGet && !slices.Contains([]string{"0", "false"}, strings.ToLower(value[0]))
}

func (c *connection) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests == 0 {
		c.idle = make(chan struct{})
	}
	c.requests++
}

func (c *connection) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests--; c.requests == 0 {
		close(c.idle)
	}
}

// awaitIdle waits until no request is in flight, at most until ctx ends.
func (c *connection) awaitIdle(ctx context.Context) {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-idle:
	}
}

const (
	// closeWithin is how long closeAll waits for requests. One that waits for the
	// datastore would not end.
	closeWithin = time.Second
	// lastBytes is the time in which the last bytes of an answer are written after its
	// handler has returned.
	lastBytes = 100 * time.Millisecond
)

// closeAll ends all watches, and closes each connection as soon as its other requests
// have ended, or after closeWithin. It does not wait for that. Members reconnect, and
// their watches resume where they were.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		if conn.closing.Err() == nil {
			conn.endWatches()
			go conn.closeWhenIdle()
		}
	}
}

// closeWhenIdle closes the connection when it had no requests for lastBytes, or after
// closeWithin.
func (c *connection) closeWhenIdle() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	for quiet := false; !quiet && ctx.Err() == nil; {
		c.awaitIdle(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(lastBytes):
		}
		c.mu.Lock()
		quiet = c.requests == 0
		c.mu.Unlock()
	}
	_ = c.Close()
}

// disconnects decides when to disconnect members because a server's Lease is not
// renewed. First as soon as other servers consider it gone. Then repeatedly during
// takeover, the time that another server may need to become leader and to detect that
// this one is gone. Then at doubling intervals: if there are no other servers, members
// come back to this one.
type disconnects struct{ next, pause time.Duration }

const (
	minPause = 5 * time.Second // between two disconnects
	maxPause = time.Minute
	// takeover is the time that another server may need: 12 s to become leader, 13 s to
	// detect a lost server.
	takeover = 25 * time.Second
)

// due is polled with the age of the Lease.
func (l *disconnects) due(age time.Duration) bool {
	if age < v1alpha1.MemberEndpointExpiry {
		*l = disconnects{next: v1alpha1.MemberEndpointExpiry, pause: minPause}
		return false
	}
	if age < l.next {
		return false
	}
	if age > takeover {
		l.pause = min(2*l.pause, maxPause)
	}
	l.next = age + l.pause
	return true
}
