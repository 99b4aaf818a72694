package system

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/atoll-dev/atoll/playground/atoll"
)

// StartAtoll starts `atoll server`, for the first time or again after it
// stopped, and returns when it is ready.
func (s *System) StartAtoll(ctx context.Context) error {
	port, err := rememberedPort(filepath.Join(s.dir, "atoll.port"))
	if err != nil {
		return fmt.Errorf("start atoll: %w", err)
	}
	s.progress("atoll", "atoll server starts")
	server, err := atoll.Start(ctx, atoll.Config{Dir: filepath.Join(s.dir, "atoll"), LogFile: s.logFile("atoll"), Port: port})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atoll = server
	return nil
}

// StopAtoll stops Atoll in order, and leaves the members alone.
func (s *System) StopAtoll() error { return s.takeAtoll().Stop() }

// KillAtoll ends Atoll as a crash would.
func (s *System) KillAtoll() { s.takeAtoll().Kill() }

func (s *System) takeAtoll() *atoll.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	server := s.atoll
	s.atoll = nil
	return server
}

// rememberedPort is the port in the file, or a free one that is written there:
// kubeconfigs of an earlier start stay true.
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
