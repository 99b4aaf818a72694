package pgproxy

import (
	"context"
	"sync"
)

// Direction is a direction of traffic.
type Direction uint8

const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

func (d Direction) String() string {
	switch d {
	case ToServer:
		return "to the server"
	case ToClient:
		return "to the client"
	default:
		return "in both directions"
	}
}

// Freeze blocks traffic in both directions, like a network partition: connections stay open, no one
// answers, and even the end of a connection does not get through.
func (l *Link) Freeze() { l.Partition(Both) }

// Partition is a Freeze of the given directions. With one direction blocked, messages in the other
// still arrive. New connections need both directions.
func (l *Link) Partition(d Direction) {
	l.proxy.counts.add(Freezes)
	l.blocked.close(d)
}

// Blackhole is a Partition that drops data, like a network whose routers forget connections. Neither
// side notices until Thaw, which resets the connections that lost data.
func (l *Link) Blackhole(d Direction) {
	l.mu.Lock()
	l.dropping |= d
	l.mu.Unlock()
	l.Partition(d)
}

// Thaw ends a Freeze, Partition or Blackhole. Delayed data arrive, as they do with TCP.
func (l *Link) Thaw() {
	// A stream with a gap must not continue, so those connections are reset before any data pass.
	l.mu.Lock()
	l.dropping = 0
	var lost []*session
	for s := range l.sessions {
		if s.lost {
			lost = append(lost, s)
		}
	}
	l.mu.Unlock()
	for _, s := range lost {
		l.proxy.counts.add(Lost)
		s.cut()
	}
	l.blocked.open()
}

// drops reports whether data that a session sends are lost.
func (l *Link) drops(s *session, d Direction) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropping&d == 0 {
		return false
	}
	s.lost = true
	return true
}

// gates has one gate for each direction.
type gates struct{ up, down gate }

func (g *gates) close(d Direction) {
	if d&ToServer != 0 {
		g.up.close()
	}
	if d&ToClient != 0 {
		g.down.close()
	}
}

func (g *gates) open() {
	g.up.open()
	g.down.open()
}

func (g *gates) wait(ctx context.Context, d Direction) bool {
	return (d&ToServer == 0 || g.up.wait(ctx)) && (d&ToClient == 0 || g.down.wait(ctx))
}

// gate blocks its callers while it is closed.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when the gate opens; nil while it is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// wait waits until the gate is open. It returns false if ctx ends first.
func (g *gate) wait(ctx context.Context) bool {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return ctx.Err() == nil
		}
		select {
		case <-shut:
		case <-ctx.Done():
			return false
		}
	}
}
