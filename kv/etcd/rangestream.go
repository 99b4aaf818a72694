package etcd

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// RangeStream is a method of etcd 3.7: it returns a range in pieces, so that neither side
// holds a long one completely. The library here is from etcd 3.6 (Kubernetes determines the
// version), so the method and its message are implemented here.

// firstPiece is the number of keys in the first piece; later pieces have as many as fill a
// message.
const firstPiece = 10

// rangeStream answers one call. All pieces are at one revision; header, count and more are
// in the last one.
func (f *adapter) rangeStream(r *pb.RangeRequest, stream grpc.ServerStream) error {
	if err := checkRange(r); err != nil {
		return err
	}
	switch {
	case r.SortOrder != pb.RangeRequest_NONE && (r.SortTarget != pb.RangeRequest_KEY || r.SortOrder != pb.RangeRequest_ASCEND):
		return status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	case r.MinModRevision|r.MaxModRevision|r.MinCreateRevision|r.MaxCreateRevision != 0:
		return status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
	}
	req := rangeFromPB(r)
	left := int64(math.MaxInt64)
	if r.Limit > 0 {
		left = r.Limit
	}
	sent, head := int64(0), int64(0)
	for piece := int64(firstPiece); ; {
		req.Limit = min(piece, left)
		res, err := f.page(stream.Context(), req)
		if err != nil {
			return toStatus(err)
		}
		if head == 0 {
			head = res.Revision
			if req.Revision == 0 {
				req.Revision = head
			}
		}
		out := &pb.RangeResponse{Kvs: kvsToPB(res.KVs)}
		n := int64(len(res.KVs))
		left -= n
		last := !res.More || left == 0 || n == 0
		if last {
			out.Header, out.More, out.Count = f.header(head), res.More, sent+res.Count
		}
		size := out.Size()
		if err := stream.SendMsg(&rangeStreamResponse{out}); err != nil {
			return err
		}
		if last {
			return nil
		}
		sent += n
		after := res.KVs[n-1].Key
		req.Start = append(append(make([]byte, 0, len(after)+1), after...), 0)
		piece = nextPiece(piece, size, f.maxRequestBytes)
	}
}

// nextPiece adjusts the number of keys towards a message size, and ignores small
// deviations.
func nextPiece(piece int64, size, target int) int64 {
	switch {
	case size < target/2:
		return piece * 2
	case size > target*2:
		return max(piece/2, 1)
	}
	return piece
}

// rangeStreamResponse is etcdserverpb.RangeStreamResponse.
type rangeStreamResponse struct {
	RangeResponse *pb.RangeResponse `protobuf:"bytes,1,opt,name=range_response,json=rangeResponse,proto3"`
}

// rangeResponseField is the number of its only field in protobuf.
const rangeResponseField = 1

// Reset, String and ProtoMessage are for servers with their own codec.
func (m *rangeStreamResponse) Reset() { *m = rangeStreamResponse{} }
func (m *rangeStreamResponse) String() string {
	return fmt.Sprintf("range_response:{%v}", m.RangeResponse)
}
func (m *rangeStreamResponse) ProtoMessage() {}

// Size returns the size of the encoded message.
func (m *rangeStreamResponse) Size() int {
	return protowire.SizeTag(rangeResponseField) + protowire.SizeBytes(m.RangeResponse.Size())
}

// MarshalToSizedBuffer fills the end of a buffer, like generated code.
func (m *rangeStreamResponse) MarshalToSizedBuffer(buf []byte) (int, error) {
	n, err := m.RangeResponse.MarshalToSizedBuffer(buf)
	if err != nil {
		return 0, err
	}
	at := len(buf) - n - protowire.SizeVarint(uint64(n))
	binary.PutUvarint(buf[at:], uint64(n))
	at--
	buf[at] = byte(protowire.EncodeTag(rangeResponseField, protowire.BytesType))
	return len(buf) - at, nil
}

// Unmarshal is never used, because this package has no client for the method.
func (m *rangeStreamResponse) Unmarshal([]byte) error {
	return fmt.Errorf("decode %T: only clients do", m)
}

// keyValueService describes etcd's KV service with all its methods. The generated
// description lacks the last one, and cannot be extended.
func keyValueService() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "etcdserverpb.KV",
		HandlerType: (*pb.KVServer)(nil),
		Methods: []grpc.MethodDesc{
			unary("Range", pb.KVServer.Range),
			unary("Put", pb.KVServer.Put),
			unary("DeleteRange", pb.KVServer.DeleteRange),
			unary("Txn", pb.KVServer.Txn),
			unary("Compact", pb.KVServer.Compact),
		},
		Streams: []grpc.StreamDesc{{
			StreamName:    "RangeStream",
			ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error {
				r := new(pb.RangeRequest)
				if err := stream.RecvMsg(r); err != nil {
					return err
				}
				return srv.(*adapter).rangeStream(r, stream)
			},
		}},
	}
}

// unary describes one method like generated code.
func unary[Req, Resp any](name string, call func(pb.KVServer, context.Context, *Req) (*Resp, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(Req)
		if err := decode(in); err != nil {
			return nil, err
		}
		if intercept == nil {
			return call(srv.(pb.KVServer), ctx, in)
		}
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/etcdserverpb.KV/" + name}
		return intercept(ctx, in, info, func(ctx context.Context, in any) (any, error) {
			return call(srv.(pb.KVServer), ctx, in.(*Req))
		})
	}}
}
