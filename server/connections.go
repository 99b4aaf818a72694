package server

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// connections tracks the connections from members to this server. A member's API server
// keeps a connection open even after it has been told to call other servers. Watches on
// it would continue, but get no events while this server is cut off from its datastore.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// track is the server's http.Server.ConnState.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[net.Conn]struct{}{}
		}
		c.open[conn] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

// closeAll closes all connections. Members reconnect, and their watches resume where
// they were.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close()
	}
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
