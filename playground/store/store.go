// Package store keeps the state of member clusters in Atoll's own keyspaces: one SQLite file, with
// one keyspace for each cluster. Each keyspace has an etcd endpoint, which an unmodified kube-apiserver
// uses as its etcd.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/server"
)

// Store serves any number of keyspaces.
type Store struct {
	db *server.Datastore

	ctx   context.Context // ends when the store is closed
	stop  context.CancelFunc
	group errgroup.Group

	mu     sync.Mutex
	served map[string]string // keyspace -> endpoint
	spaces []io.Closer
}

// Open opens the store in a file, named by its absolute path, and creates it if it does not exist.
// Only one process at a time can have it open (kv.ErrInUse).
func Open(ctx context.Context, file string) (*Store, error) {
	db, err := server.OpenDatastore(ctx, server.SQLiteURL(file))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Store{db: db, ctx: ctx, stop: stop, served: map[string]string{}}, nil
}

// Serve serves the keyspace of that name on the loopback interface until Close, and returns its endpoint. It creates
// the keyspace if it does not exist.
func (s *Store) Serve(ctx context.Context, keyspace string) (string, error) {
	return s.serve(ctx, keyspace, "127.0.0.1:0", "http://")
}

// ServeSocket is Serve at a socket, for a cluster in a network namespace.
func (s *Store) ServeSocket(ctx context.Context, keyspace, file string) (string, error) {
	return s.serve(ctx, keyspace, "unix:"+file, "unix://")
}

func (s *Store) serve(ctx context.Context, keyspace, listen, scheme string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if endpoint, ok := s.served[keyspace]; ok {
		return endpoint, nil
	}
	space, err := s.db.Keyspace(ctx, keyspace, mvcc.Options{})
	if err != nil {
		return "", err
	}
	s.spaces = append(s.spaces, space)
	ready := make(chan net.Addr, 1)
	failed := make(chan error, 1)
	s.group.Go(func() error {
		err := etcd.ListenAndServe(s.ctx, etcd.ServeConfig{
			Keyspace: space,
			Name:     keyspace,
			Listen:   []string{listen},
			Ready:    func(addrs []net.Addr) { ready <- addrs[0] },
		})
		failed <- err
		return err
	})
	select {
	case addr := <-ready:
		s.served[keyspace] = scheme + addr.String()
		return s.served[keyspace], nil
	case err := <-failed:
		return "", fmt.Errorf("serve keyspace %s: %w", keyspace, err)
	}
}

// Close stops serving and closes the file.
func (s *Store) Close() error {
	s.stop()
	errs := []error{s.group.Wait()}
	for _, space := range s.spaces {
		errs = append(errs, space.Close())
	}
	return errors.Join(append(errs, s.db.Close())...)
}
