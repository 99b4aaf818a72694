package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/atoll-dev/atoll/playground/child"
)

// system is a store that is measured.
type system interface {
	name() string
	run(ctx context.Context, w workload) ([]measurement, error)
	close()
}

// endpoint is reported by a store's child process.
type endpoint struct{ Address string }

// storeConfig is the configuration of a store's child process.
type storeConfig struct {
	Dir string
	// Datastore is the URL of the database; empty means SQLite in Dir.
	Datastore string
	// Binary is the path of a store's binary, for a store that is not part of this program.
	Binary string
}

// served is a store in a child process, reached over gRPC.
type remoteStore struct {
	title   string
	process *child.Process
	address string
	conns   int
}

func startRemoteStore(ctx context.Context, title, role string, config storeConfig, conns int) (*remoteStore, error) {
	dir := config.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	process, err := child.Start(child.Spec{Role: role, Name: title, Config: config, LogFile: dir + ".log"})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var e endpoint
	if err := process.WaitReady(ctx, &e); err != nil {
		process.Kill()
		return nil, err
	}
	return &remoteStore{title: title, process: process, address: e.Address, conns: conns}, nil
}

func (s *remoteStore) name() string { return s.title }
func (s *remoteStore) close()       { _ = s.process.Stop() }

func (s *remoteStore) run(ctx context.Context, w workload) ([]measurement, error) {
	conns, closeAll, err := dial(s.address, min(s.conns, w.Clients))
	if err != nil {
		return nil, err
	}
	defer closeAll()
	return w.run(ctx, conns)
}

// dial opens connections as an API server does: it has one for each kind of
// resource, so its requests do not share a single one.
func dial(address string, n int) ([]*kubernetes.Client, func(), error) {
	var conns []*kubernetes.Client
	closeAll := func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for range n {
		c, err := kubernetes.New(clientv3.Config{
			Endpoints:            []string{address},
			DialTimeout:          20 * time.Second,
			DialKeepAliveTime:    30 * time.Second,
			DialKeepAliveTimeout: 10 * time.Second,
			DialOptions:          []grpc.DialOption{grpc.WithBlock()}, //nolint:staticcheck // connect before the measurement
			Logger:               zap.NewNop(),
		})
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("connect to %s: %w", address, err)
		}
		conns = append(conns, c)
	}
	return conns, closeAll, nil
}

// inProcess is our store with the clients in its own process, as our API
// server uses it. Each workload runs in a fresh child, so that the figures do
// not depend on what this process did before.
type inProcess struct{ dir, datastore string }

// inProcessConfig is the configuration of that child.
type inProcessConfig struct {
	storeConfig
	Workload workload
}

func (s *inProcess) name() string { return inProcessTitle }
func (s *inProcess) close()       {}

func (s *inProcess) run(ctx context.Context, w workload) ([]measurement, error) {
	process, err := child.Start(child.Spec{
		Role: inProcessRole, Name: inProcessTitle,
		Config:  inProcessConfig{storeConfig: storeConfig{Dir: s.dir, Datastore: s.datastore}, Workload: w},
		LogFile: filepath.Clean(s.dir) + ".log",
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = process.Stop() }()
	ctx, cancel := context.WithTimeout(ctx, 4*timeLimit)
	defer cancel()
	var out []measurement
	if err := process.WaitReady(ctx, &out); err != nil {
		return nil, err
	}
	return out, nil
}
