// Package etcd provides etcd v3's APIs for a keyspace: a gRPC server for any etcd client,
// and an in-process client for the API server, which calls the keyspace without gRPC or
// protobuf in between. In the other direction, Remote makes any etcd server a keyspace. See
// DESIGN.md.
package etcd

import (
	"context"
	"hash/fnv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/atoll-dev/atoll/kv"
)

// Version is the etcd release whose behaviour this package implements, and against which it
// is tested side by side. Status reports it, because clients choose features by it: the API
// server reads consistently from its cache and serves streaming lists only if it is at
// least 3.5.13.
const Version = "3.6.8"

// raftTerm is in every response header of etcd. A keyspace has no elections; its term never
// changes.
const raftTerm = 1

const (
	// DefaultMaxRequestBytes and DefaultMaxTxnOps are etcd's own defaults.
	DefaultMaxRequestBytes = 3 << 19
	DefaultMaxTxnOps       = 128
)

// adapter answers etcd's requests from a keyspace. Both the gRPC server and the in-process
// client are thin layers around it.
type adapter struct {
	ks        kv.Keyspace
	clusterID uint64
	memberID  uint64

	member     string
	clientURLs func() []string

	maxRequestBytes int
	maxTxnOps       int

	// Bounds for clients, 0 (none) in process: of one answer, of the watches of a connection, and
	// of all watches.
	maxResponseBytes int64
	watchLimit       *watchLimit

	// quota is nil in process: the API server's writes are not restricted.
	quota *quotaGuard
	// access is nil in process, and if clients are not restricted.
	access *accessControl
}

// identity returns a stable, nonzero ID for a name.
func identity(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64() | 1
}

func (f *adapter) header(rev kv.Revision) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: f.clusterID, MemberId: f.memberID, Revision: rev, RaftTerm: raftTerm}
}

// headRevision reads the keyspace's current revision, which includes everything
// acknowledged before the call.
func (f *adapter) headRevision(ctx context.Context) (kv.Revision, error) {
	return f.headRevisionOf(ctx, []byte{0})
}

// headRevisionOf is headRevision of the partition that a key is in.
func (f *adapter) headRevisionOf(ctx context.Context, key []byte) (kv.Revision, error) {
	r, err := f.ks.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: key}, CountOnly: true})
	if err != nil {
		return 0, err
	}
	return r.Revision, nil
}

// partition returns the number of the partition that a span is in: 0 unless the keyspace
// has several.
func (f *adapter) partition(span kv.Span) int {
	if p, ok := f.ks.(kv.Partitioned); ok {
		n, _ := p.Partition(span) // a watch over several is refused
		return n
	}
	return 0
}

func (f *adapter) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	req := rangeFromPB(r)
	req.MaxBytes = f.maxResponseBytes
	res, err := f.ks.Range(ctx, req)
	if err != nil {
		return nil, f.toStatus(err)
	}
	return f.rangeToPB(res), nil
}

func (f *adapter) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	if r.Size() > f.maxRequestBytes {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	if err := f.quota.admit(ctx, putCost(r)); err != nil {
		return nil, err
	}
	res, err := f.ks.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Put: putFromPB(r)}}})
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.PutResponse{Header: f.header(res.Revision), PrevKv: kvPtrToPB(res.Results[0].Put.Prev)}, nil
}

func (f *adapter) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	if r.Size() > f.maxRequestBytes {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	res, err := f.ks.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Delete: deleteFromPB(r)}}, MaxBytes: f.maxResponseBytes})
	if err != nil {
		return nil, f.toStatus(err)
	}
	d := res.Results[0].Delete
	return &pb.DeleteRangeResponse{Header: f.header(res.Revision), Deleted: d.Deleted, PrevKvs: kvsToPB(d.Prev)}, nil
}

func (f *adapter) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, f.maxTxnOps); err != nil {
		return nil, err
	}
	// As in etcd, the size limit applies only to requests that would be replicated, not to
	// reads.
	if r.Size() > f.maxRequestBytes && writes(r) {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	if err := f.quota.admit(ctx, txnCost(r)); err != nil {
		return nil, err
	}
	req := txnFromPB(r)
	req.MaxBytes = f.maxResponseBytes
	res, err := f.ks.Txn(ctx, req)
	if err != nil {
		return nil, f.toStatus(err)
	}
	return txnToPB(res, f.header(res.Revision))
}

func (f *adapter) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	rev, err := f.ks.Compact(ctx, r.Revision, r.Physical)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.CompactionResponse{Header: f.header(rev)}, nil
}
