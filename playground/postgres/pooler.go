package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// ErrNoPooler is returned if this machine has no PgBouncer.
var ErrNoPooler = errors.New("PgBouncer is not installed (Debian: apt-get install pgbouncer)")

// Pooler is a PgBouncer in front of a Server.
type Pooler struct {
	server *Server
	port   int
	proc   *process
}

// Pooler starts a PgBouncer whose pool_mode is mode, with PgBouncer's defaults otherwise.
func (s *Server) Pooler(ctx context.Context, mode string) (*Pooler, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		return nil, ErrNoPooler
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &Pooler{server: s, port: port}
	users, config := filepath.Join(s.dir, "pooler-users"), filepath.Join(s.dir, "pooler-"+mode+".ini")
	if err := s.write(users, fmt.Sprintf("%q %q\n", superuser, s.password)); err != nil {
		return nil, err
	}
	if err := s.write(config, fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = %s
`, s.port, port, users, mode)); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "pooler-log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, config)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, environment(), log, log
	if p.proc, err = startProcess(cmd, s.as); err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	for {
		c, err := net.Dial("tcp", p.address())
		if err == nil {
			return p, c.Close()
		}
		select {
		case <-p.proc.done:
			return nil, fmt.Errorf("start PgBouncer: it ended: %v; see %s", p.proc.err, log.Name())
		case <-ctx.Done():
			p.Stop()
			return nil, fmt.Errorf("start PgBouncer: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// write creates a file that only the server's account can read.
func (s *Server) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	if s.as == nil {
		return nil
	}
	return os.Chown(path, s.as.uid, s.as.gid)
}

func (p *Pooler) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// URL returns the URL of the server's database through the pooler.
func (p *Pooler) URL() string {
	u := p.server.url("127.0.0.1")
	u.Host = p.address()
	return u.String() + "?sslmode=disable"
}

// Stop ends the pooler and all its connections.
func (p *Pooler) Stop() { p.proc.kill() }
