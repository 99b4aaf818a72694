package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// The operator's services. Calls that apply to a keyspace in SQL are answered; the others
// are refused with an alternative.

func refuse(what, instead string) error {
	return status.Error(codes.Unimplemented, "atoll: "+what+" is not supported by a keyspace: "+instead)
}

const (
	insteadOfSnapshot = "a snapshot is a file of etcd's own storage; create a backup with `atoll kv backup --endpoint ...`, " +
		"or with the tools of the SQL database"
	insteadOfMembers = "start and stop servers on the same database instead"
	insteadOfAuth    = "use TLS client certificates, or the Kubernetes API with RBAC"
)

func (f *adapter) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	st, err := f.ks.Status(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	alarms, err := f.listAlarms(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	out := &pb.StatusResponse{
		Header:  f.header(st.Revision),
		Version: Version,
		DbSize:  st.Size, DbSizeInUse: st.SizeInUse,
		// Every server is a leader, because all of them write. The raft indexes, which do
		// not exist, are reported as revisions, so that tools which compare them between
		// members see synchronized members.
		Leader: f.memberID, RaftTerm: raftTerm,
		RaftIndex: uint64(st.Revision), RaftAppliedIndex: uint64(st.Revision),
		StorageVersion: "3.6.0",
		DowngradeInfo:  &pb.DowngradeInfo{},
	}
	if f.quota != nil {
		out.DbSizeQuota = f.quota.quota
	}
	for _, a := range alarms {
		out.Errors = append(out.Errors, a.String())
	}
	return out, nil
}

// Defragment returns free space to the system, if the database can. Otherwise it succeeds
// without doing anything: compaction frees space automatically, and periodic jobs that call
// this should not fail.
func (f *adapter) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if d, ok := f.ks.(kv.Defragmenter); ok {
		if err := d.Defragment(ctx); err != nil {
			return nil, toStatus(err)
		}
	}
	rev, err := f.headRevision(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.DefragmentResponse{Header: f.header(rev)}, nil
}

func (f *adapter) Hash(context.Context, *pb.HashRequest) (*pb.HashResponse, error) {
	return nil, refuse("Hash", "use HashKV, which does not depend on the storage")
}

func (f *adapter) Snapshot(*pb.SnapshotRequest, pb.Maintenance_SnapshotServer) error {
	return refuse("Snapshot", insteadOfSnapshot)
}

func (f *adapter) MoveLeader(context.Context, *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	return nil, refuse("MoveLeader", "all servers write, there is no leader")
}

func (f *adapter) Downgrade(context.Context, *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, refuse("Downgrade", "restore a backup of the SQL database from the older version")
}

func (f *adapter) MemberList(ctx context.Context, _ *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	rev, err := f.headRevision(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	urls := f.clientURLs()
	return &pb.MemberListResponse{
		Header:  f.header(rev),
		Members: []*pb.Member{{ID: f.memberID, Name: f.member, PeerURLs: urls, ClientURLs: urls}},
	}, nil
}

func (f *adapter) MemberAdd(context.Context, *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	return nil, refuse("adding a member", insteadOfMembers)
}

func (f *adapter) MemberRemove(context.Context, *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return nil, refuse("removing a member", insteadOfMembers)
}

func (f *adapter) MemberUpdate(context.Context, *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	return nil, refuse("changing a member", insteadOfMembers)
}

func (f *adapter) MemberPromote(context.Context, *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	return nil, refuse("promoting a member", insteadOfMembers)
}
