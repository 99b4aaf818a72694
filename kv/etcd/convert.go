package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/atoll-dev/atoll/kv"
)

// Byte slices are passed through without a copy: neither side of an adapter writes to them.

func rangeFromPB(r *pb.RangeRequest) kv.RangeRequest {
	return kv.RangeRequest{
		Span:              kv.Span{Start: r.Key, End: r.RangeEnd},
		Revision:          r.Revision,
		Limit:             r.Limit,
		CountOnly:         r.CountOnly,
		KeysOnly:          r.KeysOnly,
		SortTarget:        sortTargetFromPB(r.SortTarget),
		SortOrder:         sortOrderFromPB(r.SortOrder),
		MinModRevision:    r.MinModRevision,
		MaxModRevision:    r.MaxModRevision,
		MinCreateRevision: r.MinCreateRevision,
		MaxCreateRevision: r.MaxCreateRevision,
		Serializable:      r.Serializable,
	}
}

func sortTargetFromPB(t pb.RangeRequest_SortTarget) kv.SortTarget {
	switch t {
	case pb.RangeRequest_VERSION:
		return kv.SortByVersion
	case pb.RangeRequest_CREATE:
		return kv.SortByCreate
	case pb.RangeRequest_MOD:
		return kv.SortByMod
	case pb.RangeRequest_VALUE:
		return kv.SortByValue
	default:
		return kv.SortByKey
	}
}

func sortOrderFromPB(o pb.RangeRequest_SortOrder) kv.SortOrder {
	switch o {
	case pb.RangeRequest_ASCEND:
		return kv.SortAscend
	case pb.RangeRequest_DESCEND:
		return kv.SortDescend
	default:
		return kv.SortNone
	}
}

func putFromPB(r *pb.PutRequest) *kv.PutOp {
	return &kv.PutOp{
		Key: r.Key, Value: r.Value, Lease: r.Lease,
		PrevKV: r.PrevKv, IgnoreValue: r.IgnoreValue, IgnoreLease: r.IgnoreLease,
	}
}

func deleteFromPB(r *pb.DeleteRangeRequest) *kv.DeleteOp {
	return &kv.DeleteOp{Span: kv.Span{Start: r.Key, End: r.RangeEnd}, PrevKV: r.PrevKv}
}

// txnFromPB requires a request that checkTxn has accepted.
func txnFromPB(r *pb.TxnRequest) kv.TxnRequest {
	out := kv.TxnRequest{Then: opsFromPB(r.Success), Else: opsFromPB(r.Failure)}
	if len(r.Compare) > 0 {
		out.If = make([]kv.Compare, len(r.Compare))
		for i, c := range r.Compare {
			out.If[i] = compareFromPB(c)
		}
	}
	return out
}

func compareFromPB(c *pb.Compare) kv.Compare {
	out := kv.Compare{Span: kv.Span{Start: c.Key, End: c.RangeEnd}}
	switch c.Target {
	case pb.Compare_VERSION:
		out.Target, out.Int = kv.CompareVersion, c.GetVersion()
	case pb.Compare_CREATE:
		out.Target, out.Int = kv.CompareCreate, c.GetCreateRevision()
	case pb.Compare_MOD:
		out.Target, out.Int = kv.CompareMod, c.GetModRevision()
	case pb.Compare_LEASE:
		out.Target, out.Int = kv.CompareLease, c.GetLease()
	case pb.Compare_VALUE:
		out.Target, out.Value = kv.CompareValue, c.GetValue()
	default:
		out.Target = kv.CompareNothing
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		out.Op = kv.Equal
	case pb.Compare_GREATER:
		out.Op = kv.Greater
	case pb.Compare_LESS:
		out.Op = kv.Less
	case pb.Compare_NOT_EQUAL:
		out.Op = kv.NotEqual
	default:
		out.Op = kv.Always
	}
	return out
}

func opsFromPB(in []*pb.RequestOp) []kv.Op {
	if len(in) == 0 {
		return nil
	}
	out := make([]kv.Op, len(in))
	for i, op := range in {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			r := rangeFromPB(o.RequestRange)
			out[i].Range = &r
		case *pb.RequestOp_RequestPut:
			out[i].Put = putFromPB(o.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			out[i].Delete = deleteFromPB(o.RequestDeleteRange)
		case *pb.RequestOp_RequestTxn:
			t := txnFromPB(o.RequestTxn)
			out[i].Txn = &t
		}
	}
	return out
}

func kvToPB(in *kv.KeyValue, out *mvccpb.KeyValue) {
	out.Key, out.Value = in.Key, in.Value
	out.CreateRevision, out.ModRevision = in.CreateRevision, in.ModRevision
	out.Version, out.Lease = in.Version, in.Lease
}

func kvPtrToPB(in *kv.KeyValue) *mvccpb.KeyValue {
	if in == nil {
		return nil
	}
	out := new(mvccpb.KeyValue)
	kvToPB(in, out)
	return out
}

// kvsToPB allocates in groups. One allocation for each key is slow. One for all would keep
// every value of a long list alive as long as any of them, while the API server drops each
// as soon as it has decoded it.
func kvsToPB(in []kv.KeyValue) []*mvccpb.KeyValue {
	const run = 8
	if len(in) == 0 {
		return nil
	}
	out := make([]*mvccpb.KeyValue, len(in))
	var block []mvccpb.KeyValue
	for i := range in {
		if len(block) == 0 {
			block = make([]mvccpb.KeyValue, min(run, len(in)-i))
		}
		kvToPB(&in[i], &block[0])
		out[i], block = &block[0], block[1:]
	}
	return out
}

func (f *adapter) rangeToPB(r *kv.RangeResult) *pb.RangeResponse {
	return &pb.RangeResponse{Header: f.header(r.Revision), Kvs: kvsToPB(r.KVs), More: r.More, Count: r.Count}
}

// txnToPB sets only the revision in the headers of results inside a transaction, like etcd.
func txnToPB(r *kv.TxnResult, header *pb.ResponseHeader) (*pb.TxnResponse, error) {
	out := &pb.TxnResponse{Header: header, Succeeded: r.Succeeded}
	if len(r.Results) == 0 {
		return out, nil
	}
	out.Responses = make([]*pb.ResponseOp, len(r.Results))
	inner := func() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: r.Revision} }
	for i := range r.Results {
		switch o := &r.Results[i]; {
		case o.Range != nil:
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{
				Header: &pb.ResponseHeader{Revision: o.Range.Revision},
				Kvs:    kvsToPB(o.Range.KVs), More: o.Range.More, Count: o.Range.Count,
			}}}
		case o.Put != nil:
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{
				Header: inner(), PrevKv: kvPtrToPB(o.Put.Prev),
			}}}
		case o.Delete != nil:
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{
				Header: inner(), Deleted: o.Delete.Deleted, PrevKvs: kvsToPB(o.Delete.Prev),
			}}}
		case o.Txn != nil:
			nested, err := txnToPB(o.Txn, inner())
			if err != nil {
				return nil, err
			}
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: nested}}
		default:
			return nil, rpctypes.ErrGRPCCorrupt
		}
	}
	return out, nil
}

func eventsToPB(in []kv.Event) []*mvccpb.Event {
	type pair struct {
		event mvccpb.Event
		kv    mvccpb.KeyValue
	}
	block := make([]pair, len(in))
	out := make([]*mvccpb.Event, len(in))
	for i := range in {
		p := &block[i]
		kvToPB(&in[i].KV, &p.kv)
		p.event.Kv = &p.kv
		if in[i].Type == kv.EventDelete {
			p.event.Type = mvccpb.DELETE
		}
		p.event.PrevKv = kvPtrToPB(in[i].Prev)
		out[i] = &p.event
	}
	return out
}
