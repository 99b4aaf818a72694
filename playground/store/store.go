// Package store keeps the state of member clusters: each in a store of its
// own, behind an etcd endpoint on loopback.
package store

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"

	"go.etcd.io/etcd/server/v3/embed"
)

// Store serves any number of keyspaces.
type Store struct {
	dir string

	mu      sync.Mutex
	servers []*embed.Etcd
}

// Open opens the store that is kept in dir.
func Open(dir string) (*Store, error) { return &Store{dir: dir}, nil }

// Serve serves the keyspace of that name, new if there is none, and returns
// its endpoint. It is served until Close.
func (s *Store) Serve(ctx context.Context, keyspace string) (string, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(s.dir, keyspace)
	cfg.LogLevel = "error"
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = any, any
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", fmt.Errorf("serve keyspace %s: %w", keyspace, err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case <-ctx.Done():
		etcd.Close()
		return "", fmt.Errorf("serve keyspace %s: %w", keyspace, ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, etcd)
	return "http://" + etcd.Clients[0].Addr().String(), nil
}

// Close stops serving.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, etcd := range s.servers {
		etcd.Close()
	}
	return nil
}
