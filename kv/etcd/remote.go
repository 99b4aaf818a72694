package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// Remote makes any etcd server a keyspace. The caller closes the client.
//
// etcd's API lacks some information of the contract: Status needs one or two additional
// reads.
func Remote(client *clientv3.Client) kv.Keyspace { return &remote{client: client} }

type remote struct{ client *clientv3.Client }

func (r *remote) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	op := rangeToOp(&req)
	res, err := r.client.Do(ctx, op)
	if err != nil {
		return nil, fromClient("range", false, err)
	}
	return rangeFromResponse((*pb.RangeResponse)(res.Get())), nil
}

func (r *remote) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	op, err := txnToOp(&req)
	if err != nil {
		return nil, err
	}
	res, err := r.client.Do(ctx, op)
	if err != nil {
		return nil, fromClient("txn", true, err)
	}
	return txnFromResponse((*pb.TxnResponse)(res.Txn())), nil
}

func (r *remote) Compact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	var opts []clientv3.CompactOption
	if physical {
		opts = append(opts, clientv3.WithCompactPhysical())
	}
	res, err := r.client.Compact(ctx, rev, opts...)
	if err != nil {
		return 0, fromClient(fmt.Sprintf("compact at %d", rev), true, err)
	}
	return res.Header.Revision, nil
}

// idGranter is a lease client that can grant a lease with a given ID, which clientv3's
// interface cannot.
type idGranter interface {
	grantID(ctx context.Context, id int64, ttl int64) (*pb.LeaseGrantResponse, error)
}

func (r *remote) Grant(ctx context.Context, id kv.LeaseID, ttl time.Duration) (*kv.Lease, error) {
	var res *pb.LeaseGrantResponse
	var err error
	if l, ok := r.client.Lease.(idGranter); ok {
		res, err = l.grantID(ctx, id, wholeSeconds(ttl))
	} else {
		res, err = clientv3.RetryLeaseClient(r.client).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: wholeSeconds(ttl)})
	}
	if err != nil {
		return nil, fromClient(fmt.Sprintf("grant lease %x", id), true, clientv3.ContextError(ctx, err))
	}
	granted := time.Duration(res.TTL) * time.Second
	return &kv.Lease{ID: res.ID, Granted: granted, Remaining: granted, Revision: res.Header.Revision}, nil
}

func (r *remote) Revoke(ctx context.Context, id kv.LeaseID) (kv.Revision, error) {
	res, err := r.client.Revoke(ctx, clientv3.LeaseID(id))
	if err != nil {
		return 0, fromClient(fmt.Sprintf("revoke lease %x", id), true, err)
	}
	return res.Header.Revision, nil
}

func (r *remote) KeepAlive(ctx context.Context, id kv.LeaseID) (*kv.Lease, error) {
	res, err := r.client.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	if err != nil {
		return nil, fromClient(fmt.Sprintf("keep lease %x alive", id), true, err)
	}
	ttl := time.Duration(res.TTL) * time.Second
	return &kv.Lease{ID: int64(res.ID), Granted: ttl, Remaining: ttl, Revision: res.Revision}, nil
}

func (r *remote) TimeToLive(ctx context.Context, id kv.LeaseID, withKeys bool) (*kv.Lease, error) {
	var opts []clientv3.LeaseOption
	if withKeys {
		opts = append(opts, clientv3.WithAttachedKeys())
	}
	res, err := r.client.TimeToLive(ctx, clientv3.LeaseID(id), opts...)
	if err == nil && res.TTL < 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	if err != nil {
		return nil, fromClient(fmt.Sprintf("describe lease %x", id), false, err)
	}
	slices.SortFunc(res.Keys, slices.Compare)
	return &kv.Lease{
		ID:      int64(res.ID),
		Granted: time.Duration(res.GrantedTTL) * time.Second, Remaining: time.Duration(res.TTL) * time.Second,
		Keys: res.Keys, Revision: res.Revision,
	}, nil
}

func (r *remote) LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error) {
	res, err := r.client.Leases(ctx)
	if err != nil {
		return nil, 0, fromClient("list leases", false, err)
	}
	ids := make([]kv.LeaseID, len(res.Leases))
	for i, l := range res.Leases {
		ids[i] = int64(l.ID)
	}
	slices.Sort(ids)
	return ids, res.Revision, nil
}

func (r *remote) Status(ctx context.Context) (*kv.Status, error) {
	endpoints := r.client.Endpoints()
	if len(endpoints) == 0 {
		return nil, fmt.Errorf("etcd: status: %w: the client has no endpoints", kv.ErrUnavailable)
	}
	res, err := r.client.Status(ctx, endpoints[0])
	if err != nil {
		return nil, fromClient("status", false, err)
	}
	compacted, err := r.compacted(ctx)
	if err != nil {
		return nil, err
	}
	return &kv.Status{
		Revision: res.Header.Revision, Compacted: compacted,
		Size: res.DbSize, SizeInUse: res.DbSizeInUse,
	}, nil
}

// compacted returns the compaction revision, which etcd reports only to watches that begin
// below it.
func (r *remote) compacted(ctx context.Context) (kv.Revision, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err := r.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte{0}}, Revision: 1, CountOnly: true})
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, kv.ErrCompacted) {
		return 0, err
	}
	w, err := r.Watch(ctx, kv.WatchRequest{Span: kv.Span{Start: []byte{0}}, StartRevision: 1})
	if err != nil {
		return 0, err
	}
	for res := range w.Responses() {
		switch {
		case errors.Is(res.Err, kv.ErrCompacted):
			return res.CompactRevision, nil
		case res.Err != nil:
			return 0, res.Err
		}
	}
	return 0, fmt.Errorf("etcd: find the compaction revision: %w", context.Cause(ctx))
}

// fromClient translates an error of clientv3. If etcd has certainly not begun, it returns a
// specific error; any other error of a write means that the outcome is unknown.
func fromClient(op string, write bool, err error) error {
	for _, k := range kinds() {
		if rpctypes.Error(k[1]) == err {
			return fmt.Errorf("etcd: %s: %w", op, k[0])
		}
	}
	open := kv.ErrUnavailable
	if write {
		open = kv.ErrUnknownOutcome
	}
	code := status.Code(err)
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		code = known.Code()
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		if write {
			return fmt.Errorf("etcd: %s: %w: %w", op, open, err)
		}
		return fmt.Errorf("etcd: %s: %w", op, err)
	case code == codes.InvalidArgument:
		return fmt.Errorf("etcd: %s: %w: %w", op, kv.ErrInvalidRequest, err)
	case code == codes.Unavailable, code == codes.DeadlineExceeded, code == codes.Canceled:
		return fmt.Errorf("etcd: %s: %w: %w", op, open, err)
	}
	return fmt.Errorf("etcd: %s: %w", op, err)
}
