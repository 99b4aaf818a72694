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

// maxLeaseTTL is etcd's limit, in seconds. A larger duration would overflow.
const maxLeaseTTL = 9_000_000_000

// wholeSeconds rounds the remaining time up like etcd: a client would interpret 0 as an
// expired lease.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

func (f *adapter) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > maxLeaseTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	if err := f.quota.admit(ctx, leaseCost); err != nil {
		return nil, err
	}
	l, err := f.ks.Grant(ctx, r.ID, time.Duration(r.TTL)*time.Second)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.LeaseGrantResponse{Header: f.header(l.Revision), ID: l.ID, TTL: wholeSeconds(l.Granted)}, nil
}

func (f *adapter) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	rev, err := f.ks.Revoke(ctx, r.ID)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.LeaseRevokeResponse{Header: f.header(rev)}, nil
}

// LeaseTimeToLive reports a lease that does not exist by a TTL of -1, not by an error.
func (f *adapter) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
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

func (f *adapter) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
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

// keepAliveStream is the server's end of a keepalive stream, over gRPC or in process.
type keepAliveStream interface {
	Context() context.Context
	Send(*pb.LeaseKeepAliveResponse) error
	Recv() (*pb.LeaseKeepAliveRequest, error)
}

// maxRenewals bounds the leases of one stream that are renewed concurrently. On a shared
// database a renewal waits for a commit. Clients send the renewals of all their leases on
// one stream, and together these fit into one commit.
const maxRenewals = 128

// keepAlive renews a lease for each message, and answers in the order of completion: an
// answer contains the lease's ID. It ends with the client, or with the first renewal that
// fails.
func (f *adapter) keepAlive(stream keepAliveStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	failed := make(chan error, 1)
	received := make(chan *pb.LeaseKeepAliveRequest)
	ended := make(chan error, 1)
	// A separate goroutine, which ends with the stream, because Recv cannot be interrupted
	// otherwise.
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
					default: // the first error is reported
					}
				}
			})
		case err := <-failed:
			return err
		case err := <-ended:
			if !errors.Is(err, io.EOF) {
				return err
			}
			running.Wait() // all requests have been answered
			select {
			case err := <-failed:
				return err
			default:
				return nil
			}
		}
	}
}

// renew renews one lease. A lease that does not exist is reported by a TTL of 0.
func (f *adapter) renew(ctx context.Context, id kv.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
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
