package etcd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/atoll-dev/atoll/kv"
)

// maxLeaseTTL is etcd's limit, in seconds. Beyond it a duration overflows.
const maxLeaseTTL = 9_000_000_000

// wholeSeconds rounds as etcd does: what is left, but never a 0 that a client
// would take for an end that has not come.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

func (f *face) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > maxLeaseTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	l, err := f.ks.Grant(ctx, r.ID, time.Duration(r.TTL)*time.Second)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.LeaseGrantResponse{Header: f.header(l.Revision), ID: l.ID, TTL: wholeSeconds(l.Granted)}, nil
}

func (f *face) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	rev, err := f.ks.Revoke(ctx, r.ID)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.LeaseRevokeResponse{Header: f.header(rev)}, nil
}

// LeaseTimeToLive tells a lease that is gone by a TTL of -1, not by an error.
func (f *face) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	l, err := f.ks.TimeToLive(ctx, r.ID, r.Keys)
	if errors.Is(err, kv.ErrLeaseNotFound) {
		rev, err := f.headRevision(ctx)
		if err != nil {
			return nil, toStatus(err)
		}
		return &pb.LeaseTimeToLiveResponse{Header: f.header(rev), ID: r.ID, TTL: -1}, nil
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.LeaseTimeToLiveResponse{
		Header: f.header(l.Revision), ID: l.ID,
		TTL: int64(l.Remaining / time.Second), GrantedTTL: wholeSeconds(l.Granted), Keys: l.Keys,
	}, nil
}

func (f *face) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	ids, rev, err := f.ks.LeaseList(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	out := &pb.LeaseLeasesResponse{Header: f.header(rev), Leases: make([]*pb.LeaseStatus, len(ids))}
	for i, id := range ids {
		out.Leases[i] = &pb.LeaseStatus{ID: id}
	}
	return out, nil
}

// keepAliveStream is the server's end of a keepalive stream, over gRPC or in
// process.
type keepAliveStream interface {
	Context() context.Context
	Send(*pb.LeaseKeepAliveResponse) error
	Recv() (*pb.LeaseKeepAliveRequest, error)
}

// maxRenewals bounds how many leases of one stream are renewed at once. On a
// shared database a renewal waits for a commit; clients send those of all their leases
// on one stream, and all together fit into one commit.
const maxRenewals = 128

// keepAlive renews a lease for each message that comes, and answers in the
// order in which that is done: an answer names its lease. It ends with the
// client, or with the first renewal that fails.
func (f *face) keepAlive(stream keepAliveStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	failed := make(chan error, 1)
	received := make(chan *pb.LeaseKeepAliveRequest)
	ended := make(chan error, 1)
	// On its own goroutine, which ends with the stream: nothing else can
	// interrupt Recv.
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case received <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	var sending sync.Mutex
	slots := make(chan struct{}, maxRenewals)
	for {
		select {
		case req := <-received:
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				resp, err := f.renew(ctx, req.ID)
				if err == nil {
					sending.Lock()
					err = stream.Send(resp)
					sending.Unlock()
				}
				if err != nil {
					select {
					case failed <- err:
					default: // the first one is told
					}
				}
			})
		case err := <-failed:
			return err
		case err := <-ended:
			if !errors.Is(err, io.EOF) {
				return err
			}
			running.Wait() // what was asked for is answered
			select {
			case err := <-failed:
				return err
			default:
				return nil
			}
		}
	}
}

// renew renews one lease. One that is gone is told by a TTL of 0.
func (f *face) renew(ctx context.Context, id kv.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	resp := &pb.LeaseKeepAliveResponse{ID: id}
	l, err := f.ks.KeepAlive(ctx, id)
	switch {
	case err == nil:
		resp.Header, resp.TTL = f.header(l.Revision), wholeSeconds(l.Granted)
	case errors.Is(err, kv.ErrLeaseNotFound):
		rev, err := f.headRevision(ctx)
		if err != nil {
			return nil, toStatus(err)
		}
		resp.Header = f.header(rev)
	default:
		return nil, toStatus(err)
	}
	return resp, nil
}
