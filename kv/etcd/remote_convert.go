package etcd

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv"
)

func rangeToOp(r *kv.RangeRequest) clientv3.Op {
	opts := []clientv3.OpOption{
		clientv3.WithRange(string(r.End)), clientv3.WithRev(r.Revision), clientv3.WithLimit(r.Limit),
		clientv3.WithMinModRev(r.MinModRevision), clientv3.WithMaxModRev(r.MaxModRevision),
		clientv3.WithMinCreateRev(r.MinCreateRevision), clientv3.WithMaxCreateRev(r.MaxCreateRevision),
	}
	if r.CountOnly {
		opts = append(opts, clientv3.WithCountOnly())
	}
	if r.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	if r.Serializable {
		opts = append(opts, clientv3.WithSerializable())
	}
	if r.SortTarget != kv.SortByKey || r.SortOrder != kv.SortNone {
		opts = append(opts, clientv3.WithSort(sortTargetToClient(r.SortTarget), sortOrderToClient(r.SortOrder)))
	}
	return clientv3.OpGet(string(r.Start), opts...)
}

func sortTargetToClient(t kv.SortTarget) clientv3.SortTarget {
	switch t {
	case kv.SortByVersion:
		return clientv3.SortByVersion
	case kv.SortByCreate:
		return clientv3.SortByCreateRevision
	case kv.SortByMod:
		return clientv3.SortByModRevision
	case kv.SortByValue:
		return clientv3.SortByValue
	default:
		return clientv3.SortByKey
	}
}

func sortOrderToClient(o kv.SortOrder) clientv3.SortOrder {
	switch o {
	case kv.SortAscend:
		return clientv3.SortAscend
	case kv.SortDescend:
		return clientv3.SortDescend
	default:
		return clientv3.SortNone
	}
}

func txnToOp(r *kv.TxnRequest) (clientv3.Op, error) {
	compares := make([]clientv3.Cmp, len(r.If))
	for i := range r.If {
		compares[i] = compareToClient(&r.If[i])
	}
	then, err := opsToClient(r.Then)
	if err != nil {
		return clientv3.Op{}, err
	}
	otherwise, err := opsToClient(r.Else)
	if err != nil {
		return clientv3.Op{}, err
	}
	return clientv3.OpTxn(compares, then, otherwise), nil
}

func compareToClient(c *kv.Compare) clientv3.Cmp {
	out := pb.Compare{Key: c.Start, RangeEnd: c.End}
	switch c.Target {
	case kv.CompareVersion:
		out.Target, out.TargetUnion = pb.Compare_VERSION, &pb.Compare_Version{Version: c.Int}
	case kv.CompareCreate:
		out.Target, out.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: c.Int}
	case kv.CompareMod:
		out.Target, out.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: c.Int}
	case kv.CompareLease:
		out.Target, out.TargetUnion = pb.Compare_LEASE, &pb.Compare_Lease{Lease: c.Int}
	case kv.CompareValue:
		out.Target, out.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: c.Value}
	case kv.CompareNothing:
		out.Target = -1 // no version of the API defines it
	}
	switch c.Op {
	case kv.Equal:
		out.Result = pb.Compare_EQUAL
	case kv.Greater:
		out.Result = pb.Compare_GREATER
	case kv.Less:
		out.Result = pb.Compare_LESS
	case kv.NotEqual:
		out.Result = pb.Compare_NOT_EQUAL
	case kv.Always:
		out.Result = -1
	}
	return clientv3.Cmp(out)
}

func opsToClient(in []kv.Op) ([]clientv3.Op, error) {
	out := make([]clientv3.Op, len(in))
	for i := range in {
		switch op := &in[i]; {
		case op.Range != nil:
			out[i] = rangeToOp(op.Range)
		case op.Put != nil:
			out[i] = putToOp(op.Put)
		case op.Delete != nil:
			out[i] = deleteToOp(op.Delete)
		case op.Txn != nil:
			nested, err := txnToOp(op.Txn)
			if err != nil {
				return nil, err
			}
			out[i] = nested
		default:
			return nil, fmt.Errorf("etcd: txn: %w: operation %d is empty", kv.ErrInvalidRequest, i)
		}
	}
	return out, nil
}

func putToOp(p *kv.PutOp) clientv3.Op {
	opts := []clientv3.OpOption{clientv3.WithLease(clientv3.LeaseID(p.Lease))}
	if p.PrevKV {
		opts = append(opts, clientv3.WithPrevKV())
	}
	if p.IgnoreValue {
		opts = append(opts, clientv3.WithIgnoreValue())
	}
	if p.IgnoreLease {
		opts = append(opts, clientv3.WithIgnoreLease())
	}
	return clientv3.OpPut(string(p.Key), string(p.Value), opts...)
}

func deleteToOp(d *kv.DeleteOp) clientv3.Op {
	opts := []clientv3.OpOption{clientv3.WithRange(string(d.End))}
	if d.PrevKV {
		opts = append(opts, clientv3.WithPrevKV())
	}
	return clientv3.OpDelete(string(d.Start), opts...)
}

func kvFromPB(in *mvccpb.KeyValue) kv.KeyValue {
	return kv.KeyValue{
		Key: in.Key, Value: in.Value, Lease: in.Lease,
		CreateRevision: in.CreateRevision, ModRevision: in.ModRevision, Version: in.Version,
	}
}

func kvPtrFromPB(in *mvccpb.KeyValue) *kv.KeyValue {
	if in == nil {
		return nil
	}
	out := kvFromPB(in)
	return &out
}

func kvsFromPB(in []*mvccpb.KeyValue) []kv.KeyValue {
	if len(in) == 0 {
		return nil
	}
	out := make([]kv.KeyValue, len(in))
	for i := range in {
		out[i] = kvFromPB(in[i])
	}
	return out
}

func rangeFromResponse(r *pb.RangeResponse) *kv.RangeResult {
	out := &kv.RangeResult{KVs: kvsFromPB(r.Kvs), More: r.More, Count: r.Count}
	if r.Header != nil {
		out.Revision = r.Header.Revision
	}
	return out
}

func txnFromResponse(r *pb.TxnResponse) *kv.TxnResult {
	out := &kv.TxnResult{Succeeded: r.Succeeded}
	if r.Header != nil {
		out.Revision = r.Header.Revision
	}
	if len(r.Responses) > 0 {
		out.Results = make([]kv.OpResult, len(r.Responses))
	}
	for i, op := range r.Responses {
		switch o := op.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			out.Results[i].Range = rangeFromResponse(o.ResponseRange)
		case *pb.ResponseOp_ResponsePut:
			out.Results[i].Put = &kv.PutResult{Prev: kvPtrFromPB(o.ResponsePut.PrevKv)}
		case *pb.ResponseOp_ResponseDeleteRange:
			out.Results[i].Delete = &kv.DeleteResult{
				Deleted: o.ResponseDeleteRange.Deleted, Prev: kvsFromPB(o.ResponseDeleteRange.PrevKvs),
			}
		case *pb.ResponseOp_ResponseTxn:
			nested := txnFromResponse(o.ResponseTxn)
			// Inside a transaction etcd omits the header of a nested one.
			nested.Revision = out.Revision
			out.Results[i].Txn = nested
		}
	}
	return out
}

func eventFromClient(e *clientv3.Event) kv.Event {
	out := kv.Event{KV: kvFromPB(e.Kv), Prev: kvPtrFromPB(e.PrevKv)}
	if e.Type == clientv3.EventTypeDelete {
		out.Type = kv.EventDelete
	}
	return out
}
