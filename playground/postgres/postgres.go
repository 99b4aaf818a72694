// Package postgres runs a real PostgreSQL for tests, benchmarks and the quick start. It uses the
// machine's own binaries, a directory, a port on the loopback interface, a socket, and the settings
// that durability needs. A server can be killed, frozen and followed by a standby, like databases in
// production.
//
// It sends SQL through psql only, so it needs no driver.
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

// superuser is the name of the superuser of every server that this package creates.
const superuser = "postgres"

// Config configures a Server. The zero value is a server in a temporary directory, which Stop
// removes.
type Config struct {
	// Dir contains data, log and socket. If it has the data of an earlier server, the server
	// continues with them. If empty, a temporary directory is used.
	Dir string
	// Port on the loopback interface; 0 chooses a free one.
	Port int
	// Settings are added to postgresql.conf.
	Settings map[string]string
	// MovableClock gives the server a clock of its own, which MoveClock sets.
	MovableClock bool
}

// Server is one PostgreSQL.
type Server struct {
	dir       string
	temporary bool
	port      int
	password  string
	settings  map[string]string
	bin       string
	as        *account // nil: the account of this process
	proc      *process
	// clock is the library that moves the server's clock, if it is movable.
	clock string
}

// Start starts a server and returns when it accepts connections. It runs initdb first if there are no
// data.
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

// prepare finds the binaries, the account to run as, a directory and a port.
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
	if config.MovableClock {
		if s.clock, err = findFaketime(); err != nil {
			return nil, err
		}
	}
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
	if s.clock != "" {
		if err := s.MoveClock(0); err != nil {
			s.discard()
			return nil, err
		}
	}
	if s.port == 0 {
		if s.port, err = freePort(); err != nil {
			s.discard()
			return nil, err
		}
	}
	return s, nil
}

// own creates the directory and gives it to the account that the server runs as.
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
			return fmt.Errorf("start PostgreSQL in %s: PostgreSQL does not run as root, and the account %s cannot enter %s: choose another directory, or run chmod o+x %s",
				s.dir, s.as.name, dir, dir)
		}
	}
	return nil
}

// secret returns the superuser's password. It is stored beside the data, and necessary because other
// users of the machine can connect to the port.
func (s *Server) secret() (string, error) {
	file := filepath.Join(s.dir, "password")
	if old, err := os.ReadFile(file); err == nil {
		return strings.TrimSpace(string(old)), nil
	}
	password := rand.Text()
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("start PostgreSQL: write its password: %w", err)
	}
	if s.as != nil {
		if err := os.Chown(file, s.as.uid, s.as.gid); err != nil {
			return "", fmt.Errorf("start PostgreSQL: write its password: %w", err)
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

// configure writes postgresql.conf, and overwrites the file that initdb wrote.
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
		// How soon space of dead rows is reused.
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

// Set changes settings of a running server and reloads them. Values are written to postgresql.conf
// verbatim. Settings that need a restart do not take effect.
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

// Restart starts a server that was stopped or killed, with the same data and port.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.configure(nil); err != nil {
		return err
	}
	for {
		err := s.startOnce(ctx)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), stillInUse) {
			return err
		}
		// Processes of the killed server have not all exited yet.
		time.Sleep(50 * time.Millisecond)
	}
}

// stillInUse is in the log of a server that finds shared memory of another one.
const stillInUse = "pre-existing shared memory block"

func (s *Server) startOnce(ctx context.Context) error {
	log, err := os.OpenFile(s.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start PostgreSQL: open its log: %w", err)
	}
	defer log.Close() // the server has its own handle
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data())
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = append(environment(), s.clockEnvironment()...)
	if s.proc, err = startProcess(cmd, s.as); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	for {
		select {
		case <-s.proc.done:
			return fmt.Errorf("start PostgreSQL: it exited (%v): %s", s.proc.err, s.logTail())
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("start PostgreSQL: not ready in time: %w; see %s", context.Cause(ctx), s.log())
		case <-time.After(10 * time.Millisecond):
		}
		// pg_ctl reads the state from the last line of this file too.
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

// URL returns the URL of the superuser over TCP.
func (s *Server) URL() string { return s.url("127.0.0.1").String() + "?sslmode=disable" }

// SocketURL returns the URL over the Unix socket, which is faster.
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

// Address returns the TCP address that the server listens on.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// PID returns the process id of the postmaster, the parent of all other processes.
func (s *Server) PID() int { return s.proc.pid() }

// Exec runs SQL with psql and returns its output: rows, unaligned.
func (s *Server) Exec(ctx context.Context, sql string) (string, error) {
	return s.run(ctx, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
		"--set", "ON_ERROR_STOP=1", "--dbname", s.SocketURL(), "--command", sql)
}

// Stop shuts the server down: it aborts running transactions and writes a checkpoint.
func (s *Server) Stop() error {
	err := s.proc.stop()
	if err != nil {
		err = fmt.Errorf("stop PostgreSQL: %w; see %s", err, s.log())
	}
	s.discard()
	return err
}

// Kill ends the server and all its processes with SIGKILL, like a crash of the machine, except that
// the operating system's page cache survives.
func (s *Server) Kill() {
	s.proc.kill()
}

// Pause freezes the server and all its processes, like a suspended machine: connections stay open and
// no one answers.
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
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		// The last line states the cause. The arguments are left out, because they may contain a password.
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// program returns the path of one of PostgreSQL's programs. Some packages of the server come without
// the client programs. Clients of another version on the PATH work as well.
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

// environment returns our environment without the variables that point PostgreSQL's programs to
// another server.
func environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") }), "LC_ALL=C")
}

// BinariesVariable is the environment variable with the directory of postgres, initdb and the others.
const BinariesVariable = "ATOLL_POSTGRES_BIN"

// ErrNotInstalled is returned if this machine has no PostgreSQL binaries.
var ErrNotInstalled = errors.New("PostgreSQL is not installed")

// findBinaries returns the directory with PostgreSQL's programs. Distributions that support several
// versions do not put them on the PATH.
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

// version returns the first number in a path, so that 9 sorts before 15.
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
