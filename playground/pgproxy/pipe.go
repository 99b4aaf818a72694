package pgproxy

import (
	"net"
	"time"
)

// pipe is one direction of a session. It delivers data in order after the link's delay, unless the
// link is partitioned.
type pipe struct {
	s         *session
	to        net.Conn
	direction Direction
	queue     chan packet
	burst     []byte // not queued yet; only the reader uses it
}

type packet struct {
	due  time.Time
	data []byte
}

// queuedPackets bounds the packets in flight. A full queue blocks the sender.
const queuedPackets = 256

func newPipe(s *session, to net.Conn, d Direction) *pipe {
	return &pipe{s: s, to: to, direction: d, queue: make(chan packet, queuedPackets)}
}

// delay returns the delay of data sent now.
func (p *pipe) delay() time.Duration {
	f := p.s.link.current()
	if p.direction == ToServer {
		return f.ToServer
	}
	return f.ToClient
}

// add appends to the data of the next flush.
func (p *pipe) add(data []byte) { p.burst = append(p.burst, data...) }

// flush queues the added data as one packet. Messages that arrived together stay together, so that
// pipelining does not become one packet per message.
func (p *pipe) flush() {
	if len(p.burst) == 0 {
		return
	}
	p.queue <- packet{time.Now().Add(p.delay()), p.burst}
	p.burst = nil
}

// end flushes and then queues the end of the connection.
func (p *pipe) end() {
	p.flush()
	close(p.queue)
}

// run delivers packets until the end, which closes the connection. If a write fails because the
// receiver is gone, it drops the rest. The session's other reader then finds its connection closed.
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
	// The end of a connection does not pass a partition either.
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
	if p.s.link.drops(p.s, p.direction) {
		return true // the sender does not notice
	}
	if !p.pass() {
		return false
	}
	_, err := p.to.Write(packet.data)
	return err == nil
}

// pass waits while the link or the proxy is blocked.
func (p *pipe) pass() bool {
	return p.s.link.blocked.wait(p.s.ctx, p.direction) && p.s.link.proxy.frozen.wait(p.s.ctx)
}
