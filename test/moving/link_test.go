package moving

import (
	"io"
	"net"
	"sync"
)

// link forwards connections to one address, and can be cut.
type link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	isCut bool
	open  map[net.Conn]bool
}

func newLink(to string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, to: to, open: map[net.Conn]bool{}}
	go l.serve()
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) serve() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.forward(from)
	}
}

func (l *link) forward(from net.Conn) {
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
func (l *link) add(pair ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range pair {
		l.open[c] = true
	}
	return !l.isCut
}

func (l *link) remove(pair ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range pair {
		delete(l.open, c)
	}
}

// cut ends all connections and lets none through.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for c := range l.open {
		c.Close()
	}
}

// heal lets connections through again.
func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
}

func (l *link) close() {
	l.listener.Close()
	l.cut()
}
