// Package pgproxy stands between programs and a real PostgreSQL and lets go
// wrong, on purpose and counted, what goes wrong between them in real life:
// latency, lost connections, lost answers to COMMIT, serialization failures,
// networks that swallow everything. It can also pass the PostgreSQL off as another
// database that speaks its protocol: see Database.
//
// It understands the protocol (version 3, simple and extended, pipelined) well
// enough to act at a given statement, and it never makes up the server's side:
// an error is raised by the server itself, in place of the statement, so that
// transactions end as they really would.
package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Config of a proxy.
type Config struct {
	// Server is the address of the real PostgreSQL, "host:port", which must
	// accept connections without TLS; "unix:path" for a socket.
	Server string
	// Listen is where clients connect; a free port on the loopback interface if
	// empty.
	Listen string
	// Seed of all chances. The faults of one connection depend on it, on its
	// name, on its number among those of this name, and on its messages: the same
	// traffic meets the same faults.
	Seed uint64
	// Database to emulate.
	Database Database
}

// Proxy is a running proxy.
type Proxy struct {
	config   Config
	emulated *emulation // nil: PostgreSQL as it is
	listener net.Listener
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	frozen   gate // of all links
	counts   counts

	mu      sync.Mutex
	links   map[string]*Link
	initial Faults // of links not made yet
}

// Start starts a proxy without faults.
func Start(config Config) (*Proxy, error) {
	listen := config.Listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("start a proxy for PostgreSQL: %w", err)
	}
	p := &Proxy{config: config, emulated: emulate(config.Database), listener: l, links: map[string]*Link{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is a database URL that leads through the proxy under a name, by which
// Link knows the connections.
func (p *Proxy) URL(database, name string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("lead a database URL through the proxy: it is not a URL") // not the URL: it has a password
	}
	query := u.Query()
	// It may name a socket's directory.
	query.Del("host")
	query.Del("port")
	query.Set("application_name", name)
	query.Set("sslmode", "disable")
	u.Host, u.RawQuery = p.Addr(), query.Encode()
	return u.String(), nil
}

// Close ends all connections and the proxy.
func (p *Proxy) Close() {
	p.stop()
	p.listener.Close()
	p.wg.Wait()
}

// Link gives the connections of clients that call themselves name (their
// application_name), those to come included.
func (p *Proxy) Link(name string) *Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.links[name]
	if l == nil {
		l = &Link{name: name, proxy: p, faults: p.initial, sessions: map[*session]struct{}{}}
		p.links[name] = l
	}
	return l
}

// Set sets the faults of every link, those to come included.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	p.initial = f
	p.mu.Unlock()
	for _, l := range p.all() {
		l.Set(f)
	}
}

// Freeze lets nothing through, in either direction: connections stay open and
// nobody answers.
func (p *Proxy) Freeze() {
	p.counts.add(Freezes)
	p.frozen.close()
}

// Thaw ends a Freeze. What was held up arrives, as with TCP it does.
func (p *Proxy) Thaw() { p.frozen.open() }

// Cut ends all connections.
func (p *Proxy) Cut() {
	for _, l := range p.all() {
		l.Cut()
	}
}

// Counts tells what has gone wrong so far.
func (p *Proxy) Counts() Counts { return p.counts.snapshot() }

func (p *Proxy) all() map[string]*Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.links)
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if p.ctx.Err() != nil {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely: clients wait meanwhile.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

// serve finds out who a client is and starts its session.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	defer context.AfterFunc(p.ctx, func() { client.Close() })()
	if !p.frozen.wait(p.ctx) {
		return
	}
	backend := pgproto3.NewBackend(client, client)
	for {
		msg, err := backend.ReceiveStartupMessage()
		if err != nil {
			return
		}
		switch m := msg.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			// The proxy has to read what passes.
			if _, err := client.Write([]byte{'N'}); err != nil {
				return
			}
		case *pgproto3.CancelRequest:
			p.cancel(m)
			return
		case *pgproto3.StartupMessage:
			p.Link(m.Parameters["application_name"]).serve(client, m)
			return
		}
	}
}

// cancel passes the wish to cancel a query on. There is no answer to it. While
// COMMITs are abandoned there are no such wishes: whoever leaves cancels nothing,
// but a driver that finds its connection closed might.
func (p *Proxy) cancel(m *pgproto3.CancelRequest) {
	for _, l := range p.all() {
		if l.current().AbandonCommit > 0 {
			return
		}
	}
	raw, err := m.Encode(nil)
	if err != nil {
		return
	}
	server, err := p.dial(p.ctx)
	if err != nil {
		return
	}
	defer server.Close()
	_, _ = server.Write(raw)
}

func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	network, address := "tcp", p.config.Server
	if len(address) > 5 && address[:5] == "unix:" {
		network, address = "unix", address[5:]
	}
	return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
}
