package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// InProcess returns an etcd client whose calls go directly to ks: no connection, no gRPC,
// no encoding. It is the client that k8s.io/apiserver's etcd3 storage requires.
//
// The endpoint names the keyspace. The API server has process-wide tables by endpoint (of
// compactors, of store features). So each keyspace of a process needs its own endpoint, and
// all clients of one keyspace the same. It is never dialed. Empty means "atoll".
//
// Close ends the client's watches; it does not close the keyspace. It returns an error that
// can be ignored, because its connection was never open. Requests have no size limit, and
// the client cannot manage authentication.
func InProcess(ks kv.Keyspace, endpoint string) (*kubernetes.Client, error) {
	if endpoint == "" {
		endpoint = "atoll"
	}
	// Only clientv3.New can create a client with endpoints, and it requires a connection.
	// That connection cannot connect, and is closed before it is used.
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"in-process"},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("an in-process etcd client has no connection")
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("create in-process etcd client for keyspace %q: %w", endpoint, err)
	}
	client.SetEndpoints(endpoint)
	_ = client.ActiveConnection().Close()
	client.Watcher.Close()
	client.Lease.Close()

	(&adapter{
		ks:        ks,
		clusterID: identity(endpoint), memberID: identity(endpoint + "/in-process"),
		member: "in-process", clientURLs: func() []string { return []string{endpoint} },
		maxRequestBytes: unlimited, maxTxnOps: unlimited,
	}).serveClient(client)
	return &kubernetes.Client{Client: client, Kubernetes: &direct{ks}}, nil
}

// Probe returns a function that reads from all parts of ks. Its errors are those of an etcd
// client.
func Probe(ks kv.Keyspace) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := kv.Probe(ctx, ks); err != nil {
			return toClient(ctx, err)
		}
		return nil
	}
}

// unlimited leaves room for additions to limits.
const unlimited = math.MaxInt32

// local implements the generated client interfaces on an adapter. (Call options apply only
// to connections.)
type local struct{ f *adapter }

func (l local) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return l.f.Range(ctx, r)
}

func (l local) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return l.f.Put(ctx, r)
}

func (l local) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return l.f.DeleteRange(ctx, r)
}

func (l local) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return l.f.Txn(ctx, r)
}

func (l local) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return l.f.Compact(ctx, r)
}

func (l local) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	return openPipe(ctx, func(end serverEnd[pb.WatchRequest, pb.WatchResponse]) error {
		return l.f.serveWatch(end)
	}), nil
}

func (l local) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return l.f.LeaseGrant(ctx, r)
}

func (l local) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return l.f.LeaseRevoke(ctx, r)
}

func (l local) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return openPipe(ctx, func(end serverEnd[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) error {
		return l.f.keepAlive(end)
	}), nil
}

func (l local) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return l.f.LeaseTimeToLive(ctx, r)
}

func (l local) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	return l.f.LeaseLeases(ctx, r)
}

func (l local) Alarm(ctx context.Context, r *pb.AlarmRequest, _ ...grpc.CallOption) (*pb.AlarmResponse, error) {
	return l.f.Alarm(ctx, r)
}

func (l local) Status(ctx context.Context, r *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return l.f.Status(ctx, r)
}

func (l local) Defragment(ctx context.Context, r *pb.DefragmentRequest, _ ...grpc.CallOption) (*pb.DefragmentResponse, error) {
	return l.f.Defragment(ctx, r)
}

func (l local) Hash(ctx context.Context, r *pb.HashRequest, _ ...grpc.CallOption) (*pb.HashResponse, error) {
	return l.f.Hash(ctx, r)
}

func (l local) HashKV(ctx context.Context, r *pb.HashKVRequest, _ ...grpc.CallOption) (*pb.HashKVResponse, error) {
	return l.f.HashKV(ctx, r)
}

func (l local) Snapshot(context.Context, *pb.SnapshotRequest, ...grpc.CallOption) (pb.Maintenance_SnapshotClient, error) {
	return nil, refuse("Snapshot", insteadOfSnapshot)
}

func (l local) MoveLeader(ctx context.Context, r *pb.MoveLeaderRequest, _ ...grpc.CallOption) (*pb.MoveLeaderResponse, error) {
	return l.f.MoveLeader(ctx, r)
}

func (l local) Downgrade(ctx context.Context, r *pb.DowngradeRequest, _ ...grpc.CallOption) (*pb.DowngradeResponse, error) {
	return l.f.Downgrade(ctx, r)
}

func (l local) MemberList(ctx context.Context, r *pb.MemberListRequest, _ ...grpc.CallOption) (*pb.MemberListResponse, error) {
	return l.f.MemberList(ctx, r)
}

func (l local) MemberAdd(ctx context.Context, r *pb.MemberAddRequest, _ ...grpc.CallOption) (*pb.MemberAddResponse, error) {
	return l.f.MemberAdd(ctx, r)
}

func (l local) MemberRemove(ctx context.Context, r *pb.MemberRemoveRequest, _ ...grpc.CallOption) (*pb.MemberRemoveResponse, error) {
	return l.f.MemberRemove(ctx, r)
}

func (l local) MemberUpdate(ctx context.Context, r *pb.MemberUpdateRequest, _ ...grpc.CallOption) (*pb.MemberUpdateResponse, error) {
	return l.f.MemberUpdate(ctx, r)
}

func (l local) MemberPromote(ctx context.Context, r *pb.MemberPromoteRequest, _ ...grpc.CallOption) (*pb.MemberPromoteResponse, error) {
	return l.f.MemberPromote(ctx, r)
}

// localLease can also grant leases with a given ID, for Remote.
type localLease struct {
	clientv3.Lease
	f *adapter
}

func (l localLease) grantID(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	return l.f.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: ttl})
}

// direct implements the API server's own interface, which it uses for nearly all calls, by
// direct calls of the keyspace.
type direct struct{ ks kv.Keyspace }

func (d *direct) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	var out kubernetes.GetResponse
	res, err := d.ks.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(key)}, Revision: opts.Revision, Limit: 1})
	if err != nil {
		return out, toClient(ctx, err)
	}
	out.Revision = res.Revision
	out.KV = first(res)
	return out, nil
}

func first(res *kv.RangeResult) *mvccpb.KeyValue {
	if res == nil || len(res.KVs) == 0 {
		return nil
	}
	return kvPtrToPB(&res.KVs[0])
}

func (d *direct) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	var out kubernetes.ListResponse
	span := kv.Prefix([]byte(prefix))
	if opts.Continue != "" {
		span.Start = []byte(opts.Continue)
	}
	res, err := d.ks.Range(ctx, kv.RangeRequest{Span: span, Revision: opts.Revision, Limit: opts.Limit})
	if err != nil {
		return out, toClient(ctx, err)
	}
	out.Revision, out.Count, out.Kvs = res.Revision, res.Count, kvsToPB(res.KVs)
	return out, nil
}

func (d *direct) Count(ctx context.Context, prefix string, _ kubernetes.CountOptions) (int64, error) {
	res, err := d.ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte(prefix)), CountOnly: true})
	if err != nil {
		return 0, toClient(ctx, err)
	}
	return res.Count, nil
}

func (d *direct) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	var out kubernetes.PutResponse
	k := []byte(key)
	res, err := d.txn(ctx, k, expected, kv.Op{Put: &kv.PutOp{Key: k, Value: value, Lease: int64(opts.LeaseID)}}, opts.GetOnFailure)
	if err != nil {
		return out, err
	}
	out.Revision, out.Succeeded = res.Revision, res.Succeeded
	if !res.Succeeded && opts.GetOnFailure {
		out.KV = first(res.Results[0].Range)
	}
	return out, nil
}

func (d *direct) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	var out kubernetes.DeleteResponse
	k := []byte(key)
	res, err := d.txn(ctx, k, expected, kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: k}}}, opts.GetOnFailure)
	if err != nil {
		return out, err
	}
	out.Revision, out.Succeeded = res.Revision, res.Succeeded
	if !res.Succeeded && opts.GetOnFailure {
		out.KV = first(res.Results[0].Range)
	}
	return out, nil
}

// txn runs op if key is at the expected revision, and otherwise reads the key if get is
// set.
func (d *direct) txn(ctx context.Context, key []byte, expected int64, op kv.Op, get bool) (*kv.TxnResult, error) {
	if len(key) == 0 {
		return nil, toClient(ctx, kv.ErrEmptyKey)
	}
	req := kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod, Int: expected}},
		Then: []kv.Op{op},
	}
	if get {
		req.Else = []kv.Op{{Range: &kv.RangeRequest{Span: kv.Span{Start: key}}}}
	}
	res, err := d.ks.Txn(ctx, req)
	if err != nil {
		return nil, toClient(ctx, err)
	}
	if !res.Succeeded && get && (len(res.Results) != 1 || res.Results[0].Range == nil) {
		return nil, status.Errorf(codes.Internal, "atoll: keyspace did not answer the read of key %q in a transaction", key)
	}
	return res, nil
}
