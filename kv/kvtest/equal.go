package kvtest

import (
	"bytes"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// equal reports whether two of the large answers are the same, where absent and empty
// values are. known is false for other types. The suites use it hundreds of thousands of
// times: under the race detector a comparison by reflection took most of their time.
func equal(a, b any) (same, known bool) {
	switch a := a.(type) {
	case *kv.RangeResult:
		b, ok := b.(*kv.RangeResult)
		return ok && equalPointer(a, b, equalRange), true
	case *kv.TxnResult:
		b, ok := b.(*kv.TxnResult)
		return ok && equalPointer(a, b, equalTxn), true
	case kv.KeyValue:
		b, ok := b.(kv.KeyValue)
		return ok && equalKV(a, b), true
	case []kv.Event:
		b, ok := b.([]kv.Event)
		return ok && slices.EqualFunc(a, b, equalEvent), true
	default:
		return false, false
	}
}

func equalPointer[T any](a, b *T, same func(a, b T) bool) bool {
	return a == b || a != nil && b != nil && same(*a, *b)
}

func equalKV(a, b kv.KeyValue) bool {
	return a.ModRevision == b.ModRevision && a.CreateRevision == b.CreateRevision && a.Version == b.Version &&
		a.Lease == b.Lease && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
}

func equalEvent(a, b kv.Event) bool {
	return a.Type == b.Type && equalKV(a.KV, b.KV) && equalPointer(a.Prev, b.Prev, equalKV)
}

func equalRange(a, b kv.RangeResult) bool {
	return a.Revision == b.Revision && a.More == b.More && a.Count == b.Count && slices.EqualFunc(a.KVs, b.KVs, equalKV)
}

func equalPut(a, b kv.PutResult) bool { return equalPointer(a.Prev, b.Prev, equalKV) }

func equalDelete(a, b kv.DeleteResult) bool {
	return a.Deleted == b.Deleted && slices.EqualFunc(a.Prev, b.Prev, equalKV)
}

func equalOp(a, b kv.OpResult) bool {
	return equalPointer(a.Range, b.Range, equalRange) && equalPointer(a.Put, b.Put, equalPut) &&
		equalPointer(a.Delete, b.Delete, equalDelete) && equalPointer(a.Txn, b.Txn, equalTxn)
}

func equalTxn(a, b kv.TxnResult) bool {
	return a.Revision == b.Revision && a.Succeeded == b.Succeeded && slices.EqualFunc(a.Results, b.Results, equalOp)
}
