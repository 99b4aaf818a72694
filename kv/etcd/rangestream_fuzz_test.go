package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// collector is the server's end of a RangeStream; it combines the pieces like a client.
type collector struct {
	grpc.ServerStream
	ctx context.Context
	all pb.RangeResponse
}

func (c *collector) Context() context.Context { return c.ctx }

func (c *collector) SendMsg(m any) error {
	encoded, err := codec{mem.NopBufferPool{}}.Marshal(m)
	if err != nil {
		return err
	}
	data := encoded.Materialize()
	number, kind, n := protowire.ConsumeTag(data)
	inner, rest := protowire.ConsumeBytes(data[max(n, 0):])
	if number != rangeResponseField || kind != protowire.BytesType || n+rest != len(data) {
		return status.Errorf(codes.Internal, "the message is %x", data)
	}
	var piece pb.RangeResponse
	if err := piece.Unmarshal(inner); err != nil {
		return err
	}
	c.all.Kvs = append(c.all.Kvs, piece.Kvs...)
	c.all.Header, c.all.More, c.all.Count = piece.Header, piece.More, piece.Count
	return nil
}

// compareStream compares RangeStream with the answer of Range.
func (r *fuzzRun) compareStream(m *pb.RangeRequest, want *pb.RangeResponse, refusal error) {
	got := &collector{ctx: r.t.Context()}
	err := r.adapter.rangeStream(m, got)
	switch {
	case status.Code(err) == codes.Unimplemented:
	case (err == nil) != (refusal == nil):
		r.t.Fatalf("%v: Range returns %v, RangeStream %v", m, refusal, err)
	case err == nil && got.all.String() != want.String():
		r.t.Fatalf("%v: Range returns %v, RangeStream %v", m, want, &got.all)
	}
}
