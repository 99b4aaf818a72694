package programs

import (
	"io"
	"net"
	"sync"
)

// Link forwards connections to one address, and can be cut.
type Link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	isCut bool
	open  map[net.Conn]bool
}

// NewLink returns a Link to an address.
func NewLink(to string) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Link{listener: listener, to: to, open: map[net.Conn]bool{}}
	go l.serve()
	return l, nil
}

// Address is the one to connect to instead.
func (l *Link) Address() string { return l.listener.Addr().String() }

func (l *Link) serve() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.forward(from)
	}
}

func (l *Link) forward(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !l.add(from, to) {
		return
	}
	defer l.remove(from, to)
	ended := make(chan struct{}, 2)
	for _, ends := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(ends[0], ends[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}

// add records connections. It reports false if the link is cut.
func (l *Link) add(pair ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range pair {
		l.open[c] = true
	}
	return !l.isCut
}

func (l *Link) remove(pair ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range pair {
		delete(l.open, c)
	}
}

// Cut ends all connections and lets none through.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for c := range l.open {
		c.Close()
	}
}

// Heal lets connections through again.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
}

// Close ends the link.
func (l *Link) Close() {
	l.listener.Close()
	l.Cut()
}
