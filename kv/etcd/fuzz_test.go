package etcd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// An input of FuzzRequests is a list of calls: a byte that selects the method, the length
// of the message as a uvarint, the message in protobuf. Each input has its own new
// keyspace, so failures are reproducible.
const (
	callRange = iota
	callPut
	callDelete
	callTxn
	callCompact
	callGrant
	callRevoke
	callTimeToLive
	callKeepAlive
	callWatch
	callHashKV
	callAlarm
	callKinds
)

// maxCalls bounds the length of a useful input.
const maxCalls = 24

type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

func appendCall(to []byte, kind byte, m message) []byte {
	raw, err := m.Marshal()
	if err != nil {
		panic(err)
	}
	return append(binary.AppendUvarint(append(to, kind), uint64(len(raw))), raw...)
}

// seeds contain every method once, with the requests of typical clients.
func seeds() [][]byte {
	a, b := []byte("a"), []byte("b")
	put := func(key, value string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), PrevKv: true}}}
	}
	get := func(key, end string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
	}
	del := func(key, end string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end), PrevKv: true}}}
	}
	nested := func(t *pb.TxnRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
	}
	create := &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: a, Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: 0}}},
		Success: []*pb.RequestOp{put("a", "1"), put("b", "2")},
		Failure: []*pb.RequestOp{get("a", ""), del("b", "\x00")},
	}
	var one []byte
	one = appendCall(one, callGrant, &pb.LeaseGrantRequest{ID: 7, TTL: 100})
	one = appendCall(one, callPut, &pb.PutRequest{Key: a, Value: []byte("1"), Lease: 7, PrevKv: true})
	one = appendCall(one, callTxn, create)
	one = appendCall(one, callRange, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: 1})
	one = appendCall(one, callRange, &pb.RangeRequest{Key: a, RangeEnd: b, Revision: 2, SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_MOD})
	one = appendCall(one, callDelete, &pb.DeleteRangeRequest{Key: a, RangeEnd: []byte{0}, PrevKv: true})
	one = appendCall(one, callWatch, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: a, RangeEnd: []byte{0}, StartRevision: 1, PrevKv: true, WatchId: 5, Fragment: true,
		Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT},
	}}})
	one = appendCall(one, callWatch, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
	one = appendCall(one, callCompact, &pb.CompactionRequest{Revision: 3, Physical: true})
	one = appendCall(one, callKeepAlive, &pb.LeaseKeepAliveRequest{ID: 7})
	one = appendCall(one, callTimeToLive, &pb.LeaseTimeToLiveRequest{ID: 7, Keys: true})
	one = appendCall(one, callRevoke, &pb.LeaseRevokeRequest{ID: 7})
	one = appendCall(one, callHashKV, &pb.HashKVRequest{Revision: 3})
	one = appendCall(one, callAlarm, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})

	var two []byte
	two = appendCall(two, callTxn, &pb.TxnRequest{Success: []*pb.RequestOp{put("a", "1"), nested(create), get("a", "c"), del("c", "d")}})
	two = appendCall(two, callTxn, &pb.TxnRequest{
		Compare: []*pb.Compare{
			{Key: a, RangeEnd: []byte{0}, Target: pb.Compare_VALUE, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Value{Value: b}},
			{Key: b, Target: pb.Compare_LEASE, Result: pb.Compare_NOT_EQUAL},
		},
		Failure: []*pb.RequestOp{put("", ""), {}},
	})
	two = appendCall(two, callPut, &pb.PutRequest{Key: a, IgnoreValue: true, IgnoreLease: true})
	two = appendCall(two, callRange, &pb.RangeRequest{Key: a, RangeEnd: []byte{0}, MinModRevision: 2, MaxCreateRevision: 9, CountOnly: true})
	two = appendCall(two, callDelete, &pb.DeleteRangeRequest{Key: b, RangeEnd: a})
	return [][]byte{one, two, {callWatch, 2, 0x0a, 0x00}, {callTxn, 2, 0x12, 0x00}}
}

// FuzzRequests sends arbitrary bytes as a client. Nothing may panic, every error must be
// one that etcd's clients understand and must have changed nothing, and every result must
// be the model's.
func FuzzRequests(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}
	db := openFuzzDB(f)
	n := 0
	f.Fuzz(func(t *testing.T, input []byte) {
		n++
		table, err := db.Open(t.Context(), fmt.Sprint("input ", n))
		if err != nil {
			t.Fatal(err)
		}
		ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer ks.Close()
		r := &fuzzRun{t: t, model: kvtest.NewModel(), adapter: &adapter{
			ks: ks, member: "m", clientURLs: func() []string { return nil },
			maxRequestBytes: DefaultMaxRequestBytes, maxTxnOps: DefaultMaxTxnOps,
		}}
		for calls := 0; len(input) > 0 && calls < maxCalls && r.model != nil; calls++ {
			kind := input[0] % callKinds
			length, size := binary.Uvarint(input[1:])
			if size <= 0 || length > uint64(len(input)-1-size) {
				return
			}
			r.call(kind, input[1+size:1+size+int(length)])
			input = input[1+size+int(length):]
			r.compareState()
		}
	})
}

// openFuzzDB creates a database where syncing costs nothing, if possible.
func openFuzzDB(f *testing.F) *sqlite.DB {
	dir, err := os.MkdirTemp("/dev/shm", "atoll-fuzz-*")
	if err != nil {
		dir = f.TempDir()
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	db, err := sqlite.Open(filepath.Join(dir, "kv.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	return db
}

type fuzzRun struct {
	t       *testing.T
	adapter *adapter
	model   *kvtest.Model // nil once the two may legitimately differ
}

func (r *fuzzRun) call(kind byte, raw []byte) {
	ctx := r.t.Context()
	switch kind {
	case callRange:
		if m := new(pb.RangeRequest); m.Unmarshal(raw) == nil {
			res, err := r.adapter.Range(ctx, m)
			r.compareStream(m, res, err)
			if r.proper("range", err) {
				r.compareRange(rangeFromPB(m), res)
			}
		}
	case callPut:
		if m := new(pb.PutRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.Put(ctx, m)
			if r.proper("put", err) {
				r.model1(kv.TxnRequest{Then: []kv.Op{{Put: putFromPB(m)}}})
			}
		}
	case callDelete:
		if m := new(pb.DeleteRangeRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.DeleteRange(ctx, m)
			if r.proper("delete", err) {
				r.model1(kv.TxnRequest{Then: []kv.Op{{Delete: deleteFromPB(m)}}})
			}
		}
	case callTxn:
		if m := new(pb.TxnRequest); m.Unmarshal(raw) == nil {
			res, err := r.adapter.Txn(ctx, m)
			if r.proper("txn", err) {
				if want := r.model1(txnFromPB(m)); want != nil && want.Succeeded != res.Succeeded {
					r.t.Fatalf("txn took branch %v, the model took %v", res.Succeeded, want.Succeeded)
				}
			}
		}
	case callCompact:
		if m := new(pb.CompactionRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.Compact(ctx, m)
			if r.proper("compact", err) {
				r.must("compact", r.model.Compact(m.Revision))
			}
		}
	case callWatch:
		r.watch(raw)
	case callKeepAlive:
		if m := new(pb.LeaseKeepAliveRequest); m.Unmarshal(raw) == nil {
			end := &keepAliveOnce{ctx: ctx, req: m}
			r.proper("keep alive", r.adapter.keepAlive(end))
		}
	case callHashKV:
		if m := new(pb.HashKVRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.HashKV(ctx, m)
			r.proper("hash", err)
		}
	case callAlarm:
		if m := new(pb.AlarmRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.Alarm(ctx, m)
			r.proper("alarm", err)
		}
	default:
		r.lease(kind, raw)
	}
}

func (r *fuzzRun) lease(kind byte, raw []byte) {
	ctx := r.t.Context()
	switch kind {
	case callGrant:
		if m := new(pb.LeaseGrantRequest); m.Unmarshal(raw) == nil {
			res, err := r.adapter.LeaseGrant(ctx, m)
			if r.proper("grant", err) {
				r.must("grant", r.model.Grant(res.ID))
			}
		}
	case callRevoke:
		if m := new(pb.LeaseRevokeRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.LeaseRevoke(ctx, m)
			if r.proper("revoke", err) {
				r.must("revoke", r.model.Revoke(m.ID))
			}
		}
	case callTimeToLive:
		if m := new(pb.LeaseTimeToLiveRequest); m.Unmarshal(raw) == nil {
			_, err := r.adapter.LeaseTimeToLive(ctx, m)
			r.proper("time to live", err)
		}
	}
}

// proper reports whether a call succeeded. It fails the test if a client could not
// understand the error.
func (r *fuzzRun) proper(what string, err error) bool {
	if err == nil {
		return true
	}
	s, ok := status.FromError(err)
	if !ok {
		r.t.Fatalf("%s: not a status: %v", what, err)
	}
	switch s.Code() {
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Unavailable, codes.OK:
		r.t.Fatalf("%s: status %v: %v", what, s.Code(), err)
	}
	return false
}

func (r *fuzzRun) must(what string, err error) {
	if err != nil {
		r.t.Fatalf("%s succeeded, but the model returned: %v", what, err)
	}
}

// model1 runs a completed transaction in the model.
func (r *fuzzRun) model1(req kv.TxnRequest) *kv.TxnResult {
	res, err := r.model.Txn(req)
	if errors.Is(err, kv.ErrDuplicateKey) {
		r.model = nil // where it is stricter than etcd
		return nil
	}
	r.must("a transaction", err)
	return res
}

func (r *fuzzRun) compareRange(req kv.RangeRequest, got *pb.RangeResponse) {
	if req.SortOrder != kv.SortNone || req.SortTarget != kv.SortByKey {
		return // equal keys may come in any order, and a limit cuts arbitrarily
	}
	want, err := r.model.Range(req)
	r.must("range", err)
	if got.Count != want.Count || got.More != want.More || len(got.Kvs) != len(want.KVs) || got.Header.Revision != want.Revision {
		r.t.Fatalf("range %+v: %d keys of %d, more %v, at %d; model: %d of %d, more %v, at %d", req,
			len(got.Kvs), got.Count, got.More, got.Header.Revision, len(want.KVs), want.Count, want.More, want.Revision)
	}
	for i, e := range got.Kvs {
		w := want.KVs[i]
		if !bytes.Equal(e.Key, w.Key) || !bytes.Equal(e.Value, w.Value) || e.ModRevision != w.ModRevision ||
			e.CreateRevision != w.CreateRevision || e.Version != w.Version || e.Lease != w.Lease {
			r.t.Fatalf("range %+v: key %d is %+v; model: %+v", req, i, e, w)
		}
	}
}

// compareState compares the complete state after each call, including refused ones.
func (r *fuzzRun) compareState() {
	if r.model == nil {
		return
	}
	req := kv.RangeRequest{Span: kv.Prefix(nil)}
	got, err := r.adapter.ks.Range(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.compareRange(req, r.adapter.rangeToPB(got))
}

// watch runs one stream: the message as its first, then the end of the client's side. The
// stream must end.
func (r *fuzzRun) watch(raw []byte) {
	m := new(pb.WatchRequest)
	if m.Unmarshal(raw) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	p := openPipe(ctx, func(end serverEnd[pb.WatchRequest, pb.WatchResponse]) error { return r.adapter.serveWatch(end) })
	for _, req := range []*pb.WatchRequest{m, {RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}, m} {
		if p.Send(req) != nil {
			break
		}
	}
	if err := p.CloseSend(); err != nil {
		r.t.Fatal(err)
	}
	for {
		_, err := p.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			if ctx.Err() != nil {
				r.t.Fatal("the watch stream did not end with the client's side")
			}
			r.proper("watch", err)
			return
		}
	}
}

// keepAliveOnce is a stream with one request.
type keepAliveOnce struct {
	ctx context.Context
	req *pb.LeaseKeepAliveRequest
}

func (k *keepAliveOnce) Context() context.Context              { return k.ctx }
func (k *keepAliveOnce) Send(*pb.LeaseKeepAliveResponse) error { return nil }
func (k *keepAliveOnce) Recv() (*pb.LeaseKeepAliveRequest, error) {
	req := k.req
	k.req = nil
	if req == nil {
		return nil, io.EOF
	}
	return req, nil
}
