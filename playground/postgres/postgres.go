// Package postgres runs a real PostgreSQL for tests, benchmarks and the quick
// start: the machine's own binaries, a directory, a port on the loopback
// interface and a socket, with the settings that durability needs. It can be
// killed, frozen and followed by a standby, as databases are in real life.
//
// It speaks no SQL itself except through psql, so it drags in no driver.
package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// superuser of every server that this package makes.
const superuser = "postgres"

// Config says what to start. The zero value is a server in a directory of its
// own, which Stop removes.
type Config struct {
	// Dir holds data, log and socket. A directory that a server ran in before is
	// started again with its data. Empty: a temporary one.
	Dir string
	// Port on the loopback interface; 0 chooses a free one.
	Port int
	// Settings are added to postgresql.conf.
	Settings map[string]string
}

// Server is one PostgreSQL.
type Server struct {
	dir       string
	temporary bool
	port      int
	password  string
	settings  map[string]string
	bin       string
	as        *account // nil: as ourselves
	proc      *process
}

// Start makes a database cluster if there is none, starts it and returns when
// it accepts connections.
func Start(ctx context.Context, config Config) (*Server, error) {
	s, err := prepare(config)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err != nil {
		if err := s.initdb(ctx); err != nil {
			s.discard()
			return nil, err
		}
	}
	if err := s.Restart(ctx); err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

// prepare finds the binaries, an account to run as, a directory and a port.
func prepare(config Config) (*Server, error) {
	bin, err := findBinaries()
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: config.Dir, port: config.Port, settings: config.Settings, bin: bin, as: as}
	if s.dir == "" {
		// Not below $TMPDIR: a socket's path has at most 107 bytes.
		if s.dir, err = os.MkdirTemp("/tmp", "atoll-postgres-"); err != nil {
			return nil, fmt.Errorf("start PostgreSQL: make its directory: %w", err)
		}
		s.temporary = true
	} else if s.dir, err = filepath.Abs(s.dir); err != nil {
		return nil, fmt.Errorf("start PostgreSQL in %s: %w", config.Dir, err)
	}
	if err := s.own(); err != nil {
		s.discard()
		return nil, err
	}
	if s.password, err = s.secret(); err != nil {
		s.discard()
		return nil, err
	}
	if s.port == 0 {
		if s.port, err = freePort(); err != nil {
			s.discard()
			return nil, err
		}
	}
	return s, nil
}

// own makes the directory and gives it to the account that the server runs as.
func (s *Server) own() error {
	for _, dir := range []string{s.dir, s.sockets()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("start PostgreSQL: make its directory: %w", err)
		}
		if s.as == nil {
			continue
		}
		if err := os.Chown(dir, s.as.uid, s.as.gid); err != nil {
			return fmt.Errorf("start PostgreSQL: give %s to %s: %w", dir, s.as.name, err)
		}
	}
	if s.as == nil {
		return nil
	}
	for dir := filepath.Dir(s.dir); dir != "/"; dir = filepath.Dir(dir) {
		if fi, err := os.Stat(dir); err == nil && fi.Mode()&0o001 == 0 {
			return fmt.Errorf("start PostgreSQL in %s: it does not run as root, and %s, as whom it runs, cannot pass through %s: choose another directory, or chmod o+x %s",
				s.dir, s.as.name, dir, dir)
		}
	}
	return nil
}

// secret is the superuser's password, kept beside the data: other users of
// the machine can reach the port.
func (s *Server) secret() (string, error) {
	file := filepath.Join(s.dir, "password")
	if old, err := os.ReadFile(file); err == nil {
		return strings.TrimSpace(string(old)), nil
	}
	password := rand.Text()
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("start PostgreSQL: keep its password: %w", err)
	}
	if s.as != nil {
		if err := os.Chown(file, s.as.uid, s.as.gid); err != nil {
			return "", fmt.Errorf("start PostgreSQL: keep its password: %w", err)
		}
	}
	return password, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("start PostgreSQL: find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) initdb(ctx context.Context) error {
	_, err := s.run(ctx, "initdb", "--pgdata", s.data(), "--username", superuser,
		"--encoding", "UTF8", "--locale", "C", "--auth", "scram-sha-256",
		"--pwfile", filepath.Join(s.dir, "password"))
	return err
}

// configure writes postgresql.conf anew; what initdb put there is of no use.
func (s *Server) configure(more map[string]string) error {
	settings := map[string]string{
		"listen_addresses":        "'127.0.0.1'",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": "'" + s.sockets() + "'",
		"fsync":                   "on",
		"full_page_writes":        "on",
		"synchronous_commit":      "on",
		"max_connections":         "200",
		"shared_buffers":          "256MB",
		"max_wal_size":            "4GB",
		"wal_level":               "replica",
		"max_wal_senders":         "10",
		"hot_standby":             "on",
		// How soon forgotten history becomes room for new.
		"autovacuum_naptime": "5s",
		"log_line_prefix":    "'%m [%p] '",
		"lc_messages":        "'C'",
		"timezone":           "'UTC'",
	}
	maps.Copy(settings, s.settings)
	maps.Copy(settings, more)
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, settings[name])
	}
	if err := os.WriteFile(filepath.Join(s.data(), "postgresql.conf"), text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	return nil
}

// Set changes settings of a running server that need no restart, by their
// text in postgresql.conf, and has it read them.
func (s *Server) Set(settings map[string]string) error {
	if s.settings == nil {
		s.settings = map[string]string{}
	}
	maps.Copy(s.settings, settings)
	if err := s.configure(nil); err != nil {
		return err
	}
	return s.proc.reload()
}

// Restart starts a server that was stopped or killed, on the same data and
// port.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.configure(nil); err != nil {
		return err
	}
	for {
		err := s.startOnce(ctx)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), stillInUse) {
			return err
		}
		// Processes of the one that was killed have not all ended yet.
		time.Sleep(50 * time.Millisecond)
	}
}

// stillInUse is in the log of a server that finds another one's memory.
const stillInUse = "pre-existing shared memory block"

func (s *Server) startOnce(ctx context.Context) error {
	log, err := os.OpenFile(s.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start PostgreSQL: open its log: %w", err)
	}
	defer log.Close() // the server has its own handle
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data())
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = environment()
	if s.proc, err = startProcess(cmd, s.as); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	for {
		select {
		case <-s.proc.done:
			return fmt.Errorf("start PostgreSQL: it ended (%v): %s", s.proc.err, s.logTail())
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("start PostgreSQL: not ready in time: %w; see %s", context.Cause(ctx), s.log())
		case <-time.After(10 * time.Millisecond):
		}
		// The last line of this file is how pg_ctl knows, too.
		pid, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
		lines := strings.Split(strings.TrimSpace(string(pid)), "\n")
		if err != nil || len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(s.proc.pid()) {
			continue
		}
		if state := strings.TrimSpace(lines[7]); state == "ready" || state == "standby" {
			return nil
		}
	}
}

// URL to connect to it as its superuser, over TCP.
func (s *Server) URL() string { return s.url("127.0.0.1").String() + "?sslmode=disable" }

// SocketURL is the same over the socket, which costs less.
func (s *Server) SocketURL() string {
	return s.url("").String() + "?sslmode=disable&host=" + url.QueryEscape(s.sockets()) + "&port=" + strconv.Itoa(s.port)
}

func (s *Server) url(host string) *url.URL {
	u := &url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.password), Path: "/postgres"}
	if host != "" {
		u.Host = net.JoinHostPort(host, strconv.Itoa(s.port))
	}
	return u
}

// Address is where it listens.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// PID of its first process, which is the parent of all others.
func (s *Server) PID() int { return s.proc.pid() }

// Exec runs SQL with psql and returns what it prints: rows, unaligned.
func (s *Server) Exec(ctx context.Context, sql string) (string, error) {
	return s.run(ctx, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
		"--set", "ON_ERROR_STOP=1", "--dbname", s.SocketURL(), "--command", sql)
}

// Stop shuts the server down in order: it aborts transactions under way and
// writes a checkpoint.
func (s *Server) Stop() error {
	err := s.proc.stop()
	if err != nil {
		err = fmt.Errorf("stop PostgreSQL: %w; see %s", err, s.log())
	}
	s.discard()
	return err
}

// Kill ends the server and all its processes with SIGKILL, as a crash of the
// machine would, except that the system's cache survives.
func (s *Server) Kill() {
	s.proc.kill()
}

// Pause freezes the server and all its processes, as a machine that is
// suspended: connections stay open and nobody answers.
func (s *Server) Pause() error { return s.proc.pause() }

// Continue ends a Pause.
func (s *Server) Continue() error { return s.proc.resume() }

func (s *Server) discard() {
	if s.temporary {
		os.RemoveAll(s.dir)
	}
}

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) sockets() string { return filepath.Join(s.dir, "socket") }
func (s *Server) log() string     { return filepath.Join(s.dir, "log") }

func (s *Server) logTail() string {
	text, _ := os.ReadFile(s.log())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "; ") + "; see " + s.log()
}

// run runs one of PostgreSQL's programs as the server's account.
func (s *Server) run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.program(program), args...)
	cmd.Dir = s.dir
	cmd.Env = append(environment(), "PGPASSWORD="+s.password)
	s.as.become(cmd)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		// The last line says what went wrong; arguments may carry a password.
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// program is where one of PostgreSQL's programs is. Some packages of the server
// come without those of its clients, which work with older servers, too.
func (s *Server) program(name string) string {
	path := filepath.Join(s.bin, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if other, err := exec.LookPath(name); err == nil {
		return other
	}
	return path
}

// environment without what would make PostgreSQL's programs talk to another
// server than ours.
func environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") }), "LC_ALL=C")
}

// BinariesVariable names a directory with postgres, initdb and the rest.
const BinariesVariable = "ATOLL_POSTGRES_BIN"

// ErrNotInstalled: there are no PostgreSQL binaries on this machine.
var ErrNotInstalled = errors.New("PostgreSQL is not installed")

// findBinaries finds the directory with PostgreSQL's programs. Distributions
// that keep several versions do not put them on the PATH.
func findBinaries() (string, error) {
	if dir := os.Getenv(BinariesVariable); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			return "", fmt.Errorf("%w in %s: set %s to the directory that holds initdb: %w", ErrNotInstalled, dir, BinariesVariable, err)
		}
		return dir, nil
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"} {
		found, _ := filepath.Glob(filepath.Join(pattern, "initdb"))
		slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
		if len(found) > 0 {
			return filepath.Dir(found[len(found)-1]), nil
		}
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", fmt.Errorf("%w: install it (Debian: apt-get install postgresql), or set %s to the directory that holds initdb", ErrNotInstalled, BinariesVariable)
}

// version is the first number in a path, so that 9 comes before 15.
func version(path string) int {
	begin := strings.IndexAny(path, "0123456789")
	if begin < 0 {
		return 0
	}
	path = path[begin:]
	if end := strings.IndexFunc(path, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		path = path[:end]
	}
	n, _ := strconv.Atoi(path)
	return n
}
