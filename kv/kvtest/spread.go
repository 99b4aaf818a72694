package kvtest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Spread combines several entry points of the same keyspace: each call goes to the next
// one. So each suite can run against servers that share a database, and a write
// acknowledged by one of them must be visible through the next.
func Spread(entries ...kv.Keyspace) kv.Keyspace {
	return &spread{entries: entries}
}

type spread struct {
	entries []kv.Keyspace
	calls   atomic.Uint64
}

func (s *spread) next() kv.Keyspace {
	return s.entries[s.calls.Add(1)%uint64(len(s.entries))]
}

func (s *spread) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	return s.next().Range(ctx, req)
}

func (s *spread) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	return s.next().Txn(ctx, req)
}

func (s *spread) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	return s.next().Watch(ctx, req)
}

func (s *spread) Compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	return s.next().Compact(ctx, rev, physical)
}

func (s *spread) Grant(ctx context.Context, id kv.LeaseID, ttl time.Duration) (*kv.Lease, error) {
	return s.next().Grant(ctx, id, ttl)
}

func (s *spread) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	return s.next().Revoke(ctx, id)
}

func (s *spread) KeepAlive(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	return s.next().KeepAlive(ctx, id)
}

func (s *spread) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	return s.next().TimeToLive(ctx, id, withKeys)
}

func (s *spread) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	return s.next().LeaseList(ctx)
}

func (s *spread) Status(ctx context.Context) (*kv.Status, error) {
	return s.next().Status(ctx)
}
