package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type call func(ctx context.Context, c *grpc.ClientConn) error

// attacks are calls that concern keys under /west/, the lease of such keys, or the whole
// keyspace: all services and methods of etcd.
func attacks(lease int64) map[string]call {
	out := map[string]call{}
	attackRanges(out)
	attackKeys(out, lease)
	attackLeases(out, lease)
	attackServer(out)
	attackLocks(out, lease)
	attackElections(out)
	return out
}

func attackRanges(out map[string]call) {
	b := func(s string) []byte { return []byte(s) }
	ranges := func(name string, r *pb.RangeRequest) {
		out["range "+name] = func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := pb.NewKVClient(c).Range(ctx, r)
			return err
		}
		out["stream of "+name] = func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := rangeStream(ctx, c, r, func(*pb.RangeResponse) {})
			return err
		}
		out["watch "+name] = func(ctx context.Context, c *grpc.ClientConn) error { return watchOnce(ctx, c, r.Key, r.RangeEnd) }
		out["compare "+name] = txnCall(&pb.TxnRequest{Compare: []*pb.Compare{{Key: r.Key, RangeEnd: r.RangeEnd}}})
		out["range in a txn "+name] = txnCall(&pb.TxnRequest{Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: r}}}})
		del := &pb.DeleteRangeRequest{Key: r.Key, RangeEnd: r.RangeEnd, PrevKv: true}
		out["delete "+name] = func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := pb.NewKVClient(c).DeleteRange(ctx, del)
			return err
		}
		out["delete in a nested txn "+name] = txnCall(nestedTxn(&pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: del}}))
	}
	ranges("key", &pb.RangeRequest{Key: b("/west/a")})
	ranges("count", &pb.RangeRequest{Key: b("/west/"), RangeEnd: b("/west0"), CountOnly: true})
	ranges("from key", &pb.RangeRequest{Key: b("/east/"), RangeEnd: b("\x00")})
	ranges("all", &pb.RangeRequest{Key: b("\x00"), RangeEnd: b("\x00")})
	ranges("before the prefix", &pb.RangeRequest{Key: b("/east"), RangeEnd: b("/east0")})
	ranges("past the prefix", &pb.RangeRequest{Key: b("/east/"), RangeEnd: b("/west0")})
	ranges("compacted", &pb.RangeRequest{Key: b("/west/a"), Revision: 1})

}

func attackKeys(out map[string]call, lease int64) {
	b := func(s string) []byte { return []byte(s) }
	put := &pb.PutRequest{Key: b("/west/a"), Value: b("stolen"), PrevKv: true}
	out["put"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewKVClient(c).Put(ctx, put)
		return err
	}
	attach := &pb.PutRequest{Key: b("/east/mine"), Lease: lease}
	out["attach to the lease of another"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewKVClient(c).Put(ctx, attach)
		return err
	}
	out["attach in a txn"] = txnCall(nestedTxn(&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: attach}}))
	out["put in a nested txn"] = txnCall(nestedTxn(&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}))
	out["compact"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewKVClient(c).Compact(ctx, &pb.CompactionRequest{Revision: 2})
		return err
	}

}

func attackLeases(out map[string]call, lease int64) {
	out["revoke"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(c).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: lease})
		return err
	}
	out["keys of a lease"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(c).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: lease, Keys: true})
		return err
	}
	out["list leases"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(c).LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
		return err
	}
	out["keepalive"] = func(ctx context.Context, c *grpc.ClientConn) error {
		stream, err := pb.NewLeaseClient(c).LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err = stream.Recv()
		return err
	}

}

// attackServer makes the calls that concern the whole keyspace.
func attackServer(out map[string]call) {
	m := func(name string, f func(context.Context, pb.MaintenanceClient) error) {
		out[name] = func(ctx context.Context, c *grpc.ClientConn) error { return f(ctx, pb.NewMaintenanceClient(c)) }
	}
	m("raise an alarm", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
		return err
	})
	m("disarm", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE})
		return err
	})
	m("defragment", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.Defragment(ctx, &pb.DefragmentRequest{})
		return err
	})
	m("hash", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.Hash(ctx, &pb.HashRequest{})
		return err
	})
	m("hash of keys", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.HashKV(ctx, &pb.HashKVRequest{})
		return err
	})
	m("move leader", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.MoveLeader(ctx, &pb.MoveLeaderRequest{})
		return err
	})
	m("downgrade", func(ctx context.Context, c pb.MaintenanceClient) error {
		_, err := c.Downgrade(ctx, &pb.DowngradeRequest{})
		return err
	})
	m("snapshot", func(ctx context.Context, c pb.MaintenanceClient) error {
		stream, err := c.Snapshot(ctx, &pb.SnapshotRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	})

	out["add a member"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewClusterClient(c).MemberAdd(ctx, &pb.MemberAddRequest{})
		return err
	}
	out["list users"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewAuthClient(c).UserList(ctx, &pb.AuthUserListRequest{})
		return err
	}
	out["enable authentication"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewAuthClient(c).AuthEnable(ctx, &pb.AuthEnableRequest{})
		return err
	}

}

func attackLocks(out map[string]call, lease int64) {
	b := func(s string) []byte { return []byte(s) }
	out["lock"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := v3lockpb.NewLockClient(c).Lock(ctx, &v3lockpb.LockRequest{Name: b("/west/lock")})
		return err
	}
	out["lock with the lease of another"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := v3lockpb.NewLockClient(c).Lock(ctx, &v3lockpb.LockRequest{Name: b("/east/lock"), Lease: lease})
		return err
	}
	out["unlock"] = func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := v3lockpb.NewLockClient(c).Unlock(ctx, &v3lockpb.UnlockRequest{Key: b("/west/a")})
		return err
	}
}

func attackElections(out map[string]call) {
	b := func(s string) []byte { return []byte(s) }
	e := func(name string, f func(context.Context, v3electionpb.ElectionClient) error) {
		out[name] = func(ctx context.Context, c *grpc.ClientConn) error { return f(ctx, v3electionpb.NewElectionClient(c)) }
	}
	leader := &v3electionpb.LeaderKey{Name: b("/east/e"), Key: b("/west/a"), Rev: 2}
	e("campaign", func(ctx context.Context, c v3electionpb.ElectionClient) error {
		_, err := c.Campaign(ctx, &v3electionpb.CampaignRequest{Name: b("/west/e")})
		return err
	})
	e("proclaim", func(ctx context.Context, c v3electionpb.ElectionClient) error {
		_, err := c.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: leader})
		return err
	})
	e("resign", func(ctx context.Context, c v3electionpb.ElectionClient) error {
		_, err := c.Resign(ctx, &v3electionpb.ResignRequest{Leader: leader})
		return err
	})
	e("leader", func(ctx context.Context, c v3electionpb.ElectionClient) error {
		_, err := c.Leader(ctx, &v3electionpb.LeaderRequest{Name: b("/west")})
		return err
	})
	e("observe", func(ctx context.Context, c v3electionpb.ElectionClient) error {
		stream, err := c.Observe(ctx, &v3electionpb.LeaderRequest{Name: b("/west")})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	})
}

func txnCall(r *pb.TxnRequest) call {
	return func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := pb.NewKVClient(c).Txn(ctx, r)
		return err
	}
}

func nestedTxn(op *pb.RequestOp) *pb.TxnRequest {
	inner := &pb.TxnRequest{Failure: []*pb.RequestOp{op}}
	return &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: inner}}}}
}

// watchOnce returns the reason why a watch is refused, as an error, nil if it is not.
func watchOnce(ctx context.Context, c *grpc.ClientConn, key, end []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewWatchClient(c).Watch(ctx)
	if err != nil {
		return err
	}
	create := &pb.WatchCreateRequest{Key: key, RangeEnd: end, StartRevision: 1, PrevKv: true}
	// A stream that was refused may have ended already: then Recv returns the reason.
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	r, err := stream.Recv()
	if err != nil || !r.Canceled {
		return err
	}
	if !r.Created || r.WatchId != -1 || r.CompactRevision != 0 {
		return fmt.Errorf("canceled, but not as etcd does: %v", r)
	}
	if strings.Contains(r.CancelReason, "etcdserver: permission denied") {
		return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
	}
	return fmt.Errorf("canceled: %s", r.CancelReason)
}
