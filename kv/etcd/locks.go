package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
)

// Locks and elections are recipes of keys, leases and watches. etcd's own code runs them
// here too, on a client whose calls go directly to the keyspace. So they work together with
// the same recipes of clientv3, whichever server a client calls.

// registerLocks adds etcd's lock and election services.
func (s *Server) registerLocks(g *grpc.Server) {
	c := clientv3.NewCtxClient(s.ctx)
	// The rights to a lock are those to its keys, and were checked when the call arrived.
	own := *s.adapter
	own.access = nil
	// Watches of all callers share streams here, so they are counted apart from connections.
	own.watchLimit = newWatchLimit(s.opts.MaxWatches, s.opts.MaxWatches)
	own.serveClient(c)
	v3lockpb.RegisterLockServer(g, &lockService{s, v3lock.NewLockServer(c)})
	v3electionpb.RegisterElectionServer(g, &electionService{s, v3election.NewElectionServer(c)})
}

// serveClient makes the calls of a client direct calls of the adapter.
func (f *adapter) serveClient(c *clientv3.Client) {
	l := local{f}
	c.KV = clientv3.NewKVFromKVClient(l, nil)
	c.Watcher = clientv3.NewWatchFromWatchClient(l, c)
	c.Lease = localLease{clientv3.NewLeaseFromLeaseClient(l, c, time.Second), l.f}
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(l, nil)
	c.Cluster = clientv3.NewClusterFromClusterClient(l, nil)
}

// stoppable runs a call that may wait for other clients, until the server stops.
func stoppable[Q, R any](s *Server, ctx context.Context, req Q, call func(context.Context, Q) (R, error)) (R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	res, err := call(ctx, req)
	if err != nil && s.ctx.Err() != nil {
		err = rpctypes.ErrGRPCStopped
	}
	return res, err
}

type lockService struct {
	s *Server
	v3lockpb.LockServer
}

func (l *lockService) Lock(ctx context.Context, r *v3lockpb.LockRequest) (*v3lockpb.LockResponse, error) {
	return stoppable(l.s, ctx, r, l.LockServer.Lock)
}

func (l *lockService) Unlock(ctx context.Context, r *v3lockpb.UnlockRequest) (*v3lockpb.UnlockResponse, error) {
	return stoppable(l.s, ctx, r, l.LockServer.Unlock)
}

type electionService struct {
	s *Server
	v3electionpb.ElectionServer
}

func (e *electionService) Campaign(ctx context.Context, r *v3electionpb.CampaignRequest) (*v3electionpb.CampaignResponse, error) {
	return stoppable(e.s, ctx, r, e.ElectionServer.Campaign)
}

func (e *electionService) Proclaim(ctx context.Context, r *v3electionpb.ProclaimRequest) (*v3electionpb.ProclaimResponse, error) {
	return stoppable(e.s, ctx, r, e.ElectionServer.Proclaim)
}

func (e *electionService) Leader(ctx context.Context, r *v3electionpb.LeaderRequest) (*v3electionpb.LeaderResponse, error) {
	return stoppable(e.s, ctx, r, e.ElectionServer.Leader)
}

func (e *electionService) Resign(ctx context.Context, r *v3electionpb.ResignRequest) (*v3electionpb.ResignResponse, error) {
	return stoppable(e.s, ctx, r, e.ElectionServer.Resign)
}

func (e *electionService) Observe(r *v3electionpb.LeaderRequest, stream v3electionpb.Election_ObserveServer) error {
	_, err := stoppable(e.s, stream.Context(), r, func(ctx context.Context, r *v3electionpb.LeaderRequest) (*pb.ResponseHeader, error) {
		return nil, e.ElectionServer.Observe(r, observeEnd{stream, ctx})
	})
	return err
}

// observeEnd is a stream of leaders whose context also ends with the server.
type observeEnd struct {
	v3electionpb.Election_ObserveServer
	ctx context.Context
}

func (e observeEnd) Context() context.Context { return e.ctx }
