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
	dir    string
	config string
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
	dir, err := os.MkdirTemp("/tmp", "atoll-pgbouncer-")
	if err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	p := &Pooler{server: s, port: port, dir: dir, config: filepath.Join(dir, "pgbouncer.ini")}
	if s.as != nil {
		if err := os.Chown(dir, s.as.uid, s.as.gid); err != nil {
			return nil, fmt.Errorf("start PgBouncer: %w", err)
		}
	}
	users := filepath.Join(dir, "users")
	if err := s.write(users, fmt.Sprintf("%q %q\n", superuser, s.password)); err != nil {
		return nil, err
	}
	if err := s.write(p.config, fmt.Sprintf(`[databases]
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
	if err := p.start(ctx, program); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return p, nil
}

// Restart starts the pooler again after Kill.
func (p *Pooler) Restart(ctx context.Context) error {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		return ErrNoPooler
	}
	return p.start(ctx, program)
}

func (p *Pooler) start(ctx context.Context, program string) error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, p.config)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, environment(), log, log
	if p.proc, err = startProcess(cmd, p.server.as); err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	for {
		c, err := net.Dial("tcp", p.address())
		if err == nil {
			return c.Close()
		}
		select {
		case <-p.proc.done:
			return fmt.Errorf("start PgBouncer: it ended: %v; see %s", p.proc.err, log.Name())
		case <-ctx.Done():
			p.Kill()
			return fmt.Errorf("start PgBouncer: %w", context.Cause(ctx))
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

// Kill ends the pooler and all its connections.
func (p *Pooler) Kill() { p.proc.kill() }

// Stop ends the pooler and removes its files.
func (p *Pooler) Stop() {
	p.Kill()
	os.RemoveAll(p.dir)
}
