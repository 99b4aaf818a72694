package server

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// connections are those that members have to this server. A member's API server keeps
// one as long as it lasts, also when it has been told to call other servers: watches
// on it would go on, and hear of nothing while this server is cut off from its
// datastore.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// note is for http.Server.ConnState.
func (c *connections) note(conn net.Conn, state http.ConnState) {
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

// end ends them all. Members connect anew, and their watches go on where they were.
func (c *connections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close()
	}
}

// lapses tells when to send members away because a server's Lease is not renewed: as
// soon as others take it for gone, and often for as long as another server may need
// to take over from the one that leads members elsewhere, and to miss this one. Then
// ever more rarely: where there are no other servers, members come back to this one.
type lapses struct{ next, pause time.Duration }

const (
	shortestPause = 5 * time.Second // between two times that members are sent away
	longestPause  = time.Minute
	// takeover is how long another server may need: 12 s to lead, 13 s to miss one.
	takeover = 25 * time.Second
)

// due is asked again and again, with the age of the Lease.
func (l *lapses) due(age time.Duration) bool {
	if age < v1alpha1.MemberEndpointExpiry {
		*l = lapses{next: v1alpha1.MemberEndpointExpiry, pause: shortestPause}
		return false
	}
	if age < l.next {
		return false
	}
	if age > takeover {
		l.pause = min(2*l.pause, longestPause)
	}
	l.next = age + l.pause
	return true
}
