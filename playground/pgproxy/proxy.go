// Package pgproxy is a proxy between clients and a real PostgreSQL that injects faults and counts
// them: latency, lost connections, lost replies to COMMIT, serialization failures, and networks that
// drop everything. It can also emulate another database with PostgreSQL's protocol: see Database.
//
// The proxy understands the protocol (version 3, simple and extended, pipelined) well enough to act
// at a given statement. It never invents the server's side: the server itself raises an error in place
// of the statement, so that transactions end as in a real failure.
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

// Config configures a Proxy.
type Config struct {
	// Server is the address of the real PostgreSQL, "host:port", which must
	// accept connections without TLS; "unix:path" for a socket.
	Server string
	// Listen is the address for clients; if empty, a free port on the loopback interface.
	Listen string
	// Seed determines all random faults. The faults of a connection depend on the seed, on its name, on
	// its number among the connections of this name, and on its messages: the same traffic meets the
	// same faults.
	Seed uint64
	// Database is the database to emulate.
	Database Database
}

// Proxy is a running proxy.
type Proxy struct {
	config   Config
	emulated *emulation // nil: no emulation
	listener net.Listener
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	frozen   gate // of all links
	counts   counts

	mu      sync.Mutex
	links   map[string]*Link
	initial Faults // of links that do not exist yet
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

// Addr returns the address that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL returns a database URL that connects through the proxy under a name. Link returns the
// connections of that name.
func (p *Proxy) URL(database, name string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("parse the database URL: it is not a URL") // the URL and the cause are left out, because they contain a password
	}
	query := u.Query()
	// The query may name a socket's directory.
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

// Link returns the present and future connections of clients with that name (their
// application_name).
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

// Set sets the faults of all present and future links.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	p.initial = f
	p.mu.Unlock()
	for _, l := range p.all() {
		l.Set(f)
	}
}

// Freeze blocks all traffic in both directions: connections stay open and no one answers.
func (p *Proxy) Freeze() {
	p.counts.add(Freezes)
	p.frozen.close()
}

// Thaw ends a Freeze. Delayed data arrive, as they do with TCP.
func (p *Proxy) Thaw() { p.frozen.open() }

// Cut ends all connections.
func (p *Proxy) Cut() {
	for _, l := range p.all() {
		l.Cut()
	}
}

// Counts returns how often each kind of fault has happened.
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
			// Most likely there are no file descriptors left. Clients wait meanwhile.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

// serve reads the client's startup message and runs its session.
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
			// No encryption: the proxy must read the messages.
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

// cancel forwards a cancel request, which has no answer. It drops the request while COMMITs are
// abandoned: a client that really disappears cancels nothing, but a driver whose connection was closed
// may.
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
