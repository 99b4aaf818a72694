package pgproxy

import (
	"context"
	"sync"
)

// Direction is where traffic goes.
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

// Freeze lets nothing through, in either direction, as a network that is
// divided: connections stay open, nobody answers, and not even the end of a
// connection gets through.
func (l *Link) Freeze() { l.Divide(Both) }

// Divide is a Freeze of one direction, or both: what is said in the other is
// heard, and not answered. New connections need both directions.
func (l *Link) Divide(d Direction) {
	l.proxy.counts.add(Freezes)
	l.divided.close(d)
}

// Swallow is a Divide that loses what is sent meanwhile, as a network does that
// forgets connections: nobody hears of that until Thaw, which resets those that
// have lost something.
func (l *Link) Swallow(d Direction) {
	l.mu.Lock()
	l.swallowing |= d
	l.mu.Unlock()
	l.Divide(d)
}

// Thaw ends what Freeze, Divide and Swallow have begun. What was held up
// arrives, as with TCP it does.
func (l *Link) Thaw() {
	// A stream that lacks something must not go on: those are reset before
	// anything passes.
	l.mu.Lock()
	l.swallowing = 0
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
	l.divided.open()
}

// swallows tells whether something that a session sends is lost.
func (l *Link) swallows(s *session, d Direction) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.swallowing&d == 0 {
		return false
	}
	s.lost = true
	return true
}

// gates are one gate for each direction.
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

// gate holds up what passes while it is closed.
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

// wait waits until the gate is open; it reports false if ctx ends before.
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
