package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/playground/child"
)

// serverRole is the role of a child process that serves a keyspace.
const serverRole = "keyspace-server"

// childConfig is the configuration of that role.
type childConfig struct {
	serverConfig
	Listen string
	// Jumped is the number of jumps that the clock made before the start.
	Jumped int
}

// jumpSignal makes a child's clock jump. The default action of this signal is to ignore it, so it does
// no harm before the child handles it.
const jumpSignal = syscall.SIGWINCH

// serve serves a keyspace to etcd clients, like `atoll kv serve`.
func serve(ctx context.Context, link *child.Link) error {
	var config childConfig
	if err := link.Config(&config); err != nil {
		return err
	}
	clock := newJumpyClock(config.Jumps, config.Jumped)
	signals := make(chan os.Signal, len(config.Jumps))
	signal.Notify(signals, jumpSignal)
	defer signal.Stop(signals)
	go func() {
		for {
			select {
			case <-signals:
				clock.jump()
			case <-ctx.Done():
				return
			}
		}
	}()
	db, ks, err := config.openWithRetry(ctx, clock)
	if err != nil {
		return err
	}
	defer db.Close()
	defer ks.Close()
	return etcd.ListenAndServe(ctx, etcd.ServeConfig{
		Keyspace: ks, Name: config.Keyspace, Listen: []string{config.Listen},
		Ready: func(addrs []net.Addr) { _ = link.Ready(addrs[0].String()) },
	})
}

// process is a server in a process of its own, which can be killed and frozen. Its clients are etcd's.
type process struct {
	config serverConfig
	log    string
	// namespace is its network namespace, if it has one. Clients then connect through a Unix socket,
	// because its network may be partitioned.
	namespace string
	socket    string

	mu      sync.Mutex
	address string // the same after a restart, so that clients reconnect
	jumped  int
	child   *child.Process
	client  *clientv3.Client
}

func (s *process) start(ctx context.Context) error {
	s.mu.Lock()
	address, jumped := s.address, s.jumped
	s.mu.Unlock()
	env := []string{
		// The race detector must not end the process, which would look like an intended kill.
		"GORACE=halt_on_error=0",
	}
	switch {
	case s.namespace != "":
		env = append(env, networkVariable+"="+s.namespace)
		_ = os.Remove(s.socket) // a killed server leaves its socket
		address = "unix:" + s.socket
	case address == "":
		address = "127.0.0.1:0"
	}
	p, err := child.Start(child.Spec{
		Role: serverRole, Name: "server " + s.config.Name, LogFile: s.log,
		Config: childConfig{serverConfig: s.config, Listen: address, Jumped: jumped},
		Env:    env,
	})
	if err != nil {
		return err
	}
	// The child can be killed and frozen from now on.
	s.mu.Lock()
	s.child = p
	s.mu.Unlock()
	if err := p.WaitReady(ctx, &address); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = address
	endpoint := "http://" + address
	if s.namespace != "" {
		endpoint = "unix://" + address
	}
	if s.client == nil {
		s.client, err = newClient(endpoint)
	}
	return err
}

func newClient(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		BackoffWaitBetween: 20 * time.Millisecond,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		})},
	})
}

func (s *process) keyspace() (kv.Keyspace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		return nil, errDown
	}
	// A client of a server that is down exists and retries.
	return etcd.Remote(s.client), nil
}

func (s *process) kill() {
	s.mu.Lock()
	p := s.child
	s.child = nil
	s.mu.Unlock()
	if p != nil {
		p.Kill()
	}
}

func (s *process) freeze() { s.signal(syscall.SIGSTOP) }
func (s *process) thaw()   { s.signal(syscall.SIGCONT) }

func (s *process) jump() {
	s.mu.Lock()
	s.jumped++
	s.mu.Unlock()
	s.signal(jumpSignal)
}

func (s *process) signal(sig syscall.Signal) {
	s.mu.Lock()
	p := s.child
	s.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case <-p.Done(): // the process id may belong to another process
	default:
		_ = syscall.Kill(p.PID(), sig)
	}
}

// crashPattern matches log lines of a crash or a data race.
var crashPattern = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic:|fatal error:).*`)

func (s *process) close() error {
	s.kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Close()
	}
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err
	}
	if at := crashPattern.FindIndex(text); at != nil {
		return fmt.Errorf("server %s: %s", s.config.Name, text[at[0]:min(len(text), at[0]+4000)])
	}
	return nil
}

func newProcess(dir string, p serverConfig) *process {
	return &process{config: p, log: filepath.Join(dir, p.Name+".log"), socket: filepath.Join(dir, p.Name+".socket")}
}
