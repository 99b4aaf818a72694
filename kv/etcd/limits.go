package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the memory that one client can use in a server. They leave room for every
// client that works as intended: a kube-apiserver has a watch for each resource, and reads
// long lists in pages.
const (
	DefaultMaxResponseBytes        = 512 << 20
	DefaultMaxWatchesPerConnection = 10_000
	DefaultMaxWatches              = 100_000
	// DefaultMaxLeases is for the engine, which keeps all leases in memory.
	DefaultMaxLeases = 1_000_000
)

// maxPageBytes bounds the pages that the adapter itself reads.
const maxPageBytes = 16 << 20

// toStatus is the function of that name for calls with a bounded answer.
func (f *adapter) toStatus(err error) error {
	if errors.Is(err, kv.ErrAnswerTooLarge) {
		return status.Errorf(codes.ResourceExhausted,
			"etcdserver: the answer is larger than %d bytes (--max-response-bytes): read it in pages, with a limit and from the last key on", f.maxResponseBytes)
	}
	return toStatus(err)
}

// page reads at most req.Limit keys, and fewer of them if they are large.
func (f *adapter) page(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	req.MaxBytes = maxPageBytes
	for {
		res, err := f.ks.Range(ctx, req)
		if !errors.Is(err, kv.ErrAnswerTooLarge) {
			return res, err
		}
		if req.Limit /= 2; req.Limit <= 1 {
			req.Limit, req.MaxBytes = 1, 0
		}
	}
}

// watchLimit counts the watches of a server and of each connection.
type watchLimit struct {
	perConnection, all int

	mu    sync.Mutex
	total int
	// by the address of the client, a pointer that all calls of one connection share.
	connections map[net.Addr]int
}

func newWatchLimit(perConnection, all int) *watchLimit {
	return &watchLimit{perConnection: perConnection, all: all, connections: map[net.Addr]int{}}
}

// add counts a watch, and returns a function that ends it. If there are too many, it returns
// the reason instead. nil has no bounds.
func (l *watchLimit) add(ctx context.Context) (done func(), reason string) {
	if l == nil {
		return func() {}, ""
	}
	var connection net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		connection = p.Addr
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.connections[connection] >= l.perConnection:
		return nil, fmt.Sprintf("etcdserver: too many requests: the connection has %d watches (--max-watches-per-connection): cancel some, or watch a prefix", l.perConnection)
	case l.total >= l.all:
		return nil, fmt.Sprintf("etcdserver: too many requests: the server has %d watches (--max-watches): use another server", l.all)
	}
	l.total++
	l.connections[connection]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.total--
		if l.connections[connection]--; l.connections[connection] == 0 {
			delete(l.connections, connection)
		}
	}, ""
}
