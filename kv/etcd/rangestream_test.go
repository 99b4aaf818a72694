package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// wire is a codec that leaves messages encoded.
type wire struct{}

func (wire) Name() string                  { return "proto" }
func (wire) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (wire) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

// rangeStream calls RangeStream and combines the pieces like clients of etcd 3.7. each is
// called with every piece.
func rangeStream(ctx context.Context, conn *grpc.ClientConn, r *pb.RangeRequest, each func(piece *pb.RangeResponse)) (*pb.RangeResponse, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/etcdserverpb.KV/RangeStream", grpc.ForceCodec(wire{}))
	if err != nil {
		return nil, err
	}
	data, err := r.Marshal()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&data), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	all := &pb.RangeResponse{}
	for {
		var data []byte
		if err := stream.RecvMsg(&data); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		number, kind, n := protowire.ConsumeTag(data)
		inner, m := protowire.ConsumeBytes(data[max(n, 0):])
		if number != 1 || kind != protowire.BytesType || n+m != len(data) {
			return nil, fmt.Errorf("the message is %x", data)
		}
		piece := &pb.RangeResponse{}
		if err := piece.Unmarshal(inner); err != nil {
			return nil, err
		}
		each(piece)
		all.Kvs = append(all.Kvs, piece.Kvs...)
		all.Header, all.More, all.Count = piece.Header, piece.More, piece.Count
	}
}

// TestRangeStream checks that the combined pieces are the answer of Range.
func TestRangeStream(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{MaxRequestBytes: 100_000})
	for i := range 500 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("k%03d", i), strings.Repeat("v", 10*i)); err != nil {
			t.Fatal(err)
		}
	}
	conn := c.ActiveConnection()
	kvs := pb.NewKVClient(conn)
	for _, r := range []*pb.RangeRequest{
		{Key: []byte("k"), RangeEnd: []byte("l")},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 77},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 10},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 500},
		{Key: []byte("k"), RangeEnd: []byte("l"), Revision: 301, KeysOnly: true},
		{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true, Limit: 3},
		{Key: []byte("k2"), RangeEnd: []byte{0}, SortTarget: pb.RangeRequest_KEY, SortOrder: pb.RangeRequest_ASCEND},
		{Key: []byte("k123")},
		{Key: []byte("none")},
	} {
		want, err := kvs.Range(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		pieces, largest := 0, 0
		got, err := rangeStream(t.Context(), conn, r, func(p *pb.RangeResponse) {
			if pieces++; p.Header == nil && (p.More || p.Count != 0) {
				t.Error("a piece before the last contains more than keys")
			}
			largest = max(largest, p.Size())
		})
		if err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		if got.String() != want.String() {
			t.Errorf("%v: %d keys of %d, more %v, %v; Range returns %d keys of %d, more %v, %v", r,
				len(got.Kvs), got.Count, got.More, got.Header, len(want.Kvs), want.Count, want.More, want.Header)
		}
		if largest > 400_000 || len(want.Kvs) > 20 && pieces == 1 {
			t.Errorf("%v: %d pieces of up to %d bytes", r, pieces, largest)
		}
	}
}

// TestRangeStreamHasOneRevision checks that concurrent changes are not visible.
func TestRangeStreamHasOneRevision(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{})
	for i := range 50 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("k%02d", i), "old"); err != nil {
			t.Fatal(err)
		}
	}
	conn := c.ActiveConnection()
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	got, err := rangeStream(t.Context(), conn, all, func(p *pb.RangeResponse) {
		if _, err := c.Put(t.Context(), "k49", "new"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || got.Header.Revision != 51 || string(got.Kvs[49].Value) != "old" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestRangeStreamRefuses(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{})
	if _, err := c.Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		r    *pb.RangeRequest
		want error
	}{
		{&pb.RangeRequest{}, rpctypes.ErrGRPCEmptyKey},
		{&pb.RangeRequest{Key: []byte("a"), Revision: 100}, rpctypes.ErrGRPCFutureRev},
		{&pb.RangeRequest{Key: []byte("a"), SortOrder: 7}, rpctypes.ErrGRPCInvalidSortOption},
		{&pb.RangeRequest{Key: []byte("a"), SortOrder: pb.RangeRequest_DESCEND}, status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")},
		{&pb.RangeRequest{Key: []byte("a"), MinModRevision: 2}, status.Error(codes.Unimplemented, "RangeStream does not support revision filters")},
	} {
		_, err := rangeStream(t.Context(), c.ActiveConnection(), tc.r, func(*pb.RangeResponse) {})
		if status.Code(err) != status.Code(tc.want) || status.Convert(err).Message() != status.Convert(tc.want).Message() {
			t.Errorf("%v: %v, want %v", tc.r, err, tc.want)
		}
	}
}
