package system

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// besideName returns "atoll" for the first server, and "atoll-2", "atoll-3", … for others.
func besideName(i int) string {
	if i == 0 {
		return "atoll"
	}
	return fmt.Sprintf("atoll-%d", i+1)
}

// Servers returns the names of Atoll's servers, running or not.
func (s *System) Servers() []string {
	var names []string
	for _, server := range s.servers {
		names = append(names, server.name)
	}
	return names
}

// serverOf returns the index of the server that belongs to a member, or -1.
func (s *System) serverOf(member string) int {
	return slices.IndexFunc(s.servers, func(server serverSpec) bool { return server.member == member && member != "" })
}

// StartAtoll starts all servers of Atoll, also after a stop, and returns when they are ready.
func (s *System) StartAtoll(ctx context.Context) error {
	if err := s.startDatabase(ctx); err != nil {
		return err
	}
	// Several servers start at the same time, as they may on several machines.
	group, ctx := errgroup.WithContext(ctx)
	for i := range s.servers {
		group.Go(func() error { return s.StartServer(ctx, i) })
	}
	return group.Wait()
}

// startDatabase starts a PostgreSQL if several servers need a datastore and none was configured.
func (s *System) startDatabase(ctx context.Context) error {
	if alone := len(s.servers) == 1 && s.servers[0].member == ""; alone || s.datastore != "" {
		return nil
	}
	s.progress("postgres", "starting")
	if os.Geteuid() == 0 {
		// Started by root, PostgreSQL runs as another user, who must be able to enter its directory.
		// Secret files in this directory have modes of their own.
		if err := os.Chmod(s.dir, 0o711); err != nil {
			return err
		}
	}
	port, err := rememberedPort(filepath.Join(s.dir, "postgres.port"))
	if err != nil {
		return err
	}
	db, err := postgres.Start(ctx, postgres.Config{Dir: filepath.Join(s.dir, "postgres"), Port: port})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.database, s.datastore = db, db.URL()
	return nil
}

// StartServer starts the server with index i and returns when it is ready.
func (s *System) StartServer(ctx context.Context, i int) error {
	name := s.servers[i].name
	port, err := rememberedPort(filepath.Join(s.dir, name+".port"))
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	config := atoll.Config{Dir: filepath.Join(s.dir, name), LogFile: s.logFile(name), Port: port, Flags: slices.Concat(memberFlags(), s.flags)}
	if s.datastore != "" {
		token, err := s.token()
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		config.Datastore = s.datastore
		config.Flags = append(config.Flags, "--token-file", token)
	}
	if member := s.servers[i].member; member != "" {
		config.Flags = append(config.Flags, "--cluster", member)
	}
	s.progress(name, "starting atoll server")
	server, err := atoll.Start(ctx, config)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atolls[i] = server
	go s.watchServer(i, server)
	return nil
}

func (s *System) watchServer(i int, server *atoll.Server) {
	<-server.Done()
	s.mu.Lock()
	unexpected := s.atolls[i] == server
	if unexpected {
		s.atolls[i] = nil
	}
	s.mu.Unlock()
	if unexpected {
		s.report(s.servers[i].name, server.Err())
	}
}

// token returns the path of the token file that all servers share, and creates it if it does not exist.
func (s *System) token() (string, error) {
	file := filepath.Join(s.dir, "token")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return file, nil
	case err != nil:
		return "", err
	}
	_, err = fmt.Fprintln(f, rand.Text())
	return file, errors.Join(err, f.Close())
}

// StopAtoll stops all servers gracefully. Members and the database keep running.
func (s *System) StopAtoll() error {
	var errs []error
	for i := range s.servers {
		if server := s.takeServer(i); server != nil {
			errs = append(errs, server.Stop())
		}
	}
	return errors.Join(errs...)
}

// KillAtoll ends all servers like a crash.
func (s *System) KillAtoll() {
	for i := range s.servers {
		s.KillServer(i)
	}
}

// KillServer ends one server like a crash, and reports whether it was running.
func (s *System) KillServer(i int) bool {
	server := s.takeServer(i)
	if server != nil {
		server.Kill()
	}
	return server != nil
}

func (s *System) takeServer(i int) *atoll.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	server := s.atolls[i]
	s.atolls[i] = nil
	return server
}

// rememberedPort returns the port in the file. If there is no file, it chooses a free port and
// writes it, so that kubeconfigs stay valid over restarts.
func rememberedPort(file string) (int, error) {
	if raw, err := os.ReadFile(file); err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			return port, nil
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	return port, os.WriteFile(file, []byte(strconv.Itoa(port)+"\n"), 0o600)
}
