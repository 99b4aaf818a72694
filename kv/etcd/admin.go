package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The operator's services. What has a meaning for a keyspace in SQL is
// answered; the rest is refused with a word on what to use instead.

func refuse(what, instead string) error {
	return status.Error(codes.Unimplemented, "atoll: "+what+" is not offered by a keyspace: "+instead)
}

const (
	insteadOfSnapshot = "a snapshot is a file of etcd's own storage; make a backup with `atoll kv backup --endpoint ...`, " +
		"or with the tools of the SQL database"
	insteadOfMembers = "servers come and go by being started and stopped on the same database"
	insteadOfAuth    = "control access with TLS client certificates, or let clients use the Kubernetes API"
)

func (f *face) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	st, err := f.ks.Status(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.StatusResponse{
		Header:  f.header(st.Revision),
		Version: Version,
		DbSize:  st.Size, DbSizeInUse: st.SizeInUse,
		// Every server leads: all of them write. The indexes of a log that does
		// not exist are given as revisions, so that tools which compare them
		// between members see members in step.
		Leader: f.memberID, RaftTerm: raftTerm,
		RaftIndex: uint64(st.Revision), RaftAppliedIndex: uint64(st.Revision),
		StorageVersion: "3.6.0",
		DowngradeInfo:  &pb.DowngradeInfo{},
	}, nil
}

// Alarm has none to tell; there is no space quota that could raise one.
func (f *face) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action == pb.AlarmRequest_ACTIVATE {
		return nil, refuse("raising an alarm", "there is no space quota that it could guard")
	}
	rev, err := f.headRevision(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.AlarmResponse{Header: f.header(rev)}, nil
}

// Defragment succeeds without doing anything: compaction gives space back by
// itself, and routine jobs that call this should not fail.
func (f *face) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	rev, err := f.headRevision(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.DefragmentResponse{Header: f.header(rev)}, nil
}

func (f *face) Hash(context.Context, *pb.HashRequest) (*pb.HashResponse, error) {
	return nil, refuse("Hash", "use HashKV, which hashes keys as any engine stores them")
}

func (f *face) Snapshot(*pb.SnapshotRequest, pb.Maintenance_SnapshotServer) error {
	return refuse("Snapshot", insteadOfSnapshot)
}

func (f *face) MoveLeader(context.Context, *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	return nil, refuse("MoveLeader", "no server leads, all of them write")
}

func (f *face) Downgrade(context.Context, *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, refuse("Downgrade", "restore a backup of the SQL database that the older version made")
}

func (f *face) MemberList(ctx context.Context, _ *pb.MemberListRequest) (*pb.MemberListResponse, error) {
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

func (f *face) MemberAdd(context.Context, *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	return nil, refuse("adding a member", insteadOfMembers)
}

func (f *face) MemberRemove(context.Context, *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return nil, refuse("removing a member", insteadOfMembers)
}

func (f *face) MemberUpdate(context.Context, *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	return nil, refuse("changing a member", insteadOfMembers)
}

func (f *face) MemberPromote(context.Context, *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	return nil, refuse("promoting a member", insteadOfMembers)
}
