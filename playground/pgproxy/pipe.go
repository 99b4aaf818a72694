package pgproxy

import (
	"net"
	"time"
)

// pipe is one direction of a session: what its reader puts in comes out at the
// other end after the link's delay, in order, unless the link is divided.
type pipe struct {
	s         *session
	to        net.Conn
	direction Direction
	queue     chan packet
	burst     []byte // not in the queue yet; the reader's
}

type packet struct {
	due  time.Time
	data []byte
}

// queuedPackets bounds what is under way; beyond it the sender is held up.
const queuedPackets = 256

func newPipe(s *session, to net.Conn, d Direction) *pipe {
	return &pipe{s: s, to: to, direction: d, queue: make(chan packet, queuedPackets)}
}

// delay of what is sent now.
func (p *pipe) delay() time.Duration {
	f := p.s.link.current()
	if p.direction == ToServer {
		return f.ToServer
	}
	return f.ToClient
}

// add appends to what the next flush sends.
func (p *pipe) add(data []byte) { p.burst = append(p.burst, data...) }

// flush sends on what was added. Messages that came together stay together:
// pipelining must not turn into a packet for each message.
func (p *pipe) flush() {
	if len(p.burst) == 0 {
		return
	}
	p.queue <- packet{time.Now().Add(p.delay()), p.burst}
	p.burst = nil
}

// end sends on what was added, and then the end of the connection.
func (p *pipe) end() {
	p.flush()
	close(p.queue)
}

// run delivers until the end, which closes the connection. When the receiver
// is gone, so that writing fails, the rest is dropped: the session's other
// reader notices that its connection is closed.
func (p *pipe) run() {
	deliver := true
	for packet := range p.queue {
		if deliver {
			deliver = p.write(packet)
		}
		if !deliver {
			p.to.Close()
		}
	}
	// The end of a connection does not pass a divided link either.
	p.pass()
	p.to.Close()
}

func (p *pipe) write(packet packet) bool {
	if wait := time.Until(packet.due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.s.ctx.Done():
			return false
		}
	}
	if p.s.link.swallows(p.s, p.direction) {
		return true // its sender does not know
	}
	if !p.pass() {
		return false
	}
	_, err := p.to.Write(packet.data)
	return err == nil
}

// pass waits while link or proxy let nothing through.
func (p *pipe) pass() bool {
	return p.s.link.divided.wait(p.s.ctx, p.direction) && p.s.link.proxy.frozen.wait(p.s.ctx)
}
