package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// TestRefusals sends invalid requests to etcd and to Atoll. Clients act on codes and
// compare messages, so both must be the same.
func TestRefusals(t *testing.T) {
	referee := startReferee(t)
	_, atoll := serve(t, openAtoll(t), etcd.Options{})
	for _, c := range []*clientv3.Client{referee, atoll} {
		for range 5 {
			if _, err := c.Put(t.Context(), "a", "1"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Compact(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		if _, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range badRequests() {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.call(t.Context(), referee)
			got := tc.call(t.Context(), atoll)
			if status.Code(got) != status.Code(want) || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("Atoll returns %v, etcd %v", got, want)
			}
		})
	}
}

type badRequest struct {
	name string
	call func(context.Context, *clientv3.Client) error
}

func badRequests() []badRequest {
	kvCall := func(name string, call func(context.Context, pb.KVClient) error) badRequest {
		return badRequest{name, func(ctx context.Context, c *clientv3.Client) error {
			return call(ctx, pb.NewKVClient(c.ActiveConnection()))
		}}
	}
	ranges := func(name string, r *pb.RangeRequest) badRequest {
		return kvCall("range: "+name, func(ctx context.Context, c pb.KVClient) error { _, err := c.Range(ctx, r); return err })
	}
	puts := func(name string, r *pb.PutRequest) badRequest {
		return kvCall("put: "+name, func(ctx context.Context, c pb.KVClient) error { _, err := c.Put(ctx, r); return err })
	}
	deletes := func(name string, r *pb.DeleteRangeRequest) badRequest {
		return kvCall("delete: "+name, func(ctx context.Context, c pb.KVClient) error { _, err := c.DeleteRange(ctx, r); return err })
	}
	txns := func(name string, r *pb.TxnRequest) badRequest {
		return kvCall("txn: "+name, func(ctx context.Context, c pb.KVClient) error { _, err := c.Txn(ctx, r); return err })
	}
	compacts := func(name string, rev int64) badRequest {
		return kvCall("compact: "+name, func(ctx context.Context, c pb.KVClient) error {
			_, err := c.Compact(ctx, &pb.CompactionRequest{Revision: rev})
			return err
		})
	}
	lease := func(name string, call func(context.Context, pb.LeaseClient) error) badRequest {
		return badRequest{"lease: " + name, func(ctx context.Context, c *clientv3.Client) error {
			return call(ctx, pb.NewLeaseClient(c.ActiveConnection()))
		}}
	}
	put := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}
	}
	read := func(rev int64) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a"), Revision: rev}}}
	}
	nested := func(ops ...*pb.RequestOp) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: ops}}}
	}
	many := func(n int) []*pb.RequestOp {
		var out []*pb.RequestOp
		for i := range n {
			out = append(out, put(fmt.Sprint(i)))
		}
		return out
	}
	a := []byte("a")
	return []badRequest{
		ranges("no key", &pb.RangeRequest{}),
		ranges("unknown sort order", &pb.RangeRequest{Key: a, SortOrder: 9}),
		ranges("unknown sort target", &pb.RangeRequest{Key: a, SortTarget: 9}),
		ranges("compacted", &pb.RangeRequest{Key: a, Revision: 3}),
		ranges("future", &pb.RangeRequest{Key: a, Revision: 1000}),
		puts("no key", &pb.PutRequest{}),
		puts("value to ignore", &pb.PutRequest{Key: a, Value: a, IgnoreValue: true}),
		puts("lease to ignore", &pb.PutRequest{Key: a, Lease: 7, IgnoreLease: true}),
		puts("nothing to keep", &pb.PutRequest{Key: []byte("missing"), IgnoreValue: true}),
		puts("no such lease", &pb.PutRequest{Key: a, Lease: 99}),
		puts("too large", &pb.PutRequest{Key: a, Value: bytes.Repeat(a, 1_600_000)}),
		puts("far too large", &pb.PutRequest{Key: a, Value: bytes.Repeat(a, 2_097_152)}),
		deletes("no key", &pb.DeleteRangeRequest{}),
		txns("empty compare", &pb.TxnRequest{Compare: []*pb.Compare{{}}}),
		txns("empty operation", &pb.TxnRequest{Success: []*pb.RequestOp{{}}}),
		txns("empty operation on the other branch", &pb.TxnRequest{Failure: []*pb.RequestOp{{}}}),
		txns("no key", &pb.TxnRequest{Success: []*pb.RequestOp{put("a"), put("")}}),
		txns("key twice", &pb.TxnRequest{Success: []*pb.RequestOp{put("a"), put("a")}}),
		txns("key twice, nested", &pb.TxnRequest{Success: []*pb.RequestOp{put("a"), nested(put("a"))}}),
		txns("no key and a key twice", &pb.TxnRequest{Success: []*pb.RequestOp{put("a"), put("a"), put("")}}),
		txns("compacted", &pb.TxnRequest{Success: []*pb.RequestOp{put("b"), read(2)}}),
		txns("future", &pb.TxnRequest{Success: []*pb.RequestOp{put("b"), read(2000)}}),
		txns("too many", &pb.TxnRequest{Success: many(129)}),
		txns("too many on the other branch", &pb.TxnRequest{Failure: many(129)}),
		txns("too many, nested", &pb.TxnRequest{Success: append(many(100), nested(many(50)...))}),
		compacts("again", 4), compacts("less", 2), compacts("nothing", 0), compacts("future", 1000),
		lease("exists", func(ctx context.Context, c pb.LeaseClient) error {
			_, err := c.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: 10})
			return err
		}),
		lease("too long", func(ctx context.Context, c pb.LeaseClient) error {
			_, err := c.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 9_000_000_001})
			return err
		}),
		lease("revoke a missing lease", func(ctx context.Context, c pb.LeaseClient) error {
			_, err := c.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 99})
			return err
		}),
		lease("describe a missing lease", func(ctx context.Context, c pb.LeaseClient) error {
			r, err := c.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: 99})
			if err == nil {
				err = fmt.Errorf("no error, but lease %d with TTL %d", r.ID, r.TTL)
			}
			return err
		}),
		lease("keep alive a missing lease", func(ctx context.Context, c pb.LeaseClient) error {
			stream, err := c.LeaseKeepAlive(ctx)
			if err != nil {
				return err
			}
			if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: 99}); err != nil {
				return err
			}
			r, err := stream.Recv()
			if err == nil {
				err = fmt.Errorf("no error, but lease %d with TTL %d", r.ID, r.TTL)
			}
			return err
		}),
		{"auth: log in", func(ctx context.Context, c *clientv3.Client) error {
			_, err := pb.NewAuthClient(c.ActiveConnection()).Authenticate(ctx, &pb.AuthenticateRequest{Name: "x", Password: "y"})
			return err
		}},
	}
}
