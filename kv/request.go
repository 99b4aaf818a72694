package kv

// Span is a set of keys, with etcd's conventions for its end:
//
//	End empty      the one key Start
//	End "\x00"     every key >= Start
//	otherwise      Start <= key < End
type Span struct {
	Start, End []byte
}

// SortTarget and SortOrder choose an order other than by ascending key.
type SortTarget uint8

const (
	SortByKey SortTarget = iota
	SortByVersion
	SortByCreate
	SortByMod
	SortByValue
)

type SortOrder uint8

const (
	SortNone SortOrder = iota
	SortAscend
	SortDescend
)

// RangeRequest reads the keys of a span.
type RangeRequest struct {
	Span
	// Revision to read at; 0 or below means now.
	Revision Revision
	// Limit on the number of keys returned; 0 means none. It does not change Count.
	Limit int64
	// CountOnly returns no keys, only their number.
	CountOnly bool
	// KeysOnly leaves values out.
	KeysOnly bool

	SortTarget SortTarget
	SortOrder  SortOrder

	// Bounds on revisions of the keys returned; 0 means none. As in etcd they filter the
	// returned keys and do not change Count.
	MinModRevision, MaxModRevision       Revision
	MinCreateRevision, MaxCreateRevision Revision

	// MaxBytes bounds the size of the keys in the answer, with their values; 0 means no bound.
	// A larger answer fails with ErrAnswerTooLarge, before all of it is in memory.
	MaxBytes int64

	// Serializable permits an answer from a possibly stale snapshot.
	Serializable bool
}

// RangeResult is the answer to a RangeRequest.
type RangeResult struct {
	// Revision is the keyspace's current revision; the answer contains no change above it.
	Revision Revision
	KVs      []KeyValue
	// More is true if Limit cut the answer short.
	More bool
	// Count of keys in the span at the revision read, regardless of the limit.
	Count int64
}

// CompareTarget is the attribute that a Compare tests.
type CompareTarget uint8

const (
	CompareVersion CompareTarget = iota
	CompareCreate
	CompareMod
	CompareValue
	CompareLease
	// CompareNothing finds every key equal to the operand: etcd's answer to a target that it
	// does not know.
	CompareNothing
)

// CompareOp is the comparison operator.
type CompareOp uint8

const (
	Equal CompareOp = iota
	Greater
	Less
	NotEqual
	// Always holds: etcd's answer to an operator that it does not know.
	Always
)

// Compare is a condition on a key, or on every key of a span. A single key that does not
// exist has version, revisions and lease 0 in compares, and fails every comparison of its
// value. So does a span without keys, as in etcd.
type Compare struct {
	Span
	Target CompareTarget
	Op     CompareOp
	// Int is the operand for all targets but CompareValue; Value is the operand for that
	// one.
	Int   int64
	Value []byte
}

// Op is one operation of a transaction: exactly one field is set.
type Op struct {
	Range  *RangeRequest
	Put    *PutOp
	Delete *DeleteOp
	Txn    *TxnRequest
}

// PutOp writes one key.
type PutOp struct {
	Key, Value []byte
	Lease      LeaseID
	// PrevKV requests the previous key and value.
	PrevKV bool
	// IgnoreValue and IgnoreLease keep the existing value or lease; the key must exist.
	IgnoreValue, IgnoreLease bool
}

// DeleteOp deletes the keys of a span.
type DeleteOp struct {
	Span
	PrevKV bool
}

// TxnRequest runs Then if every Compare holds, and Else otherwise. Operations see the
// changes of earlier operations of the same transaction. Compares, including those of
// nested transactions, see the state before it began, as in etcd. On one path a key may be
// put only once, and not both put and deleted.
type TxnRequest struct {
	If   []Compare
	Then []Op
	Else []Op
	// MaxBytes bounds all answers of the transaction together, as in RangeRequest, and the
	// values that one compare reads. It is ignored in nested transactions, which share that
	// of the outer one.
	MaxBytes int64
}

// OpResult mirrors Op.
type OpResult struct {
	Range  *RangeResult
	Put    *PutResult
	Delete *DeleteResult
	Txn    *TxnResult
}

type PutResult struct {
	Prev *KeyValue
}

type DeleteResult struct {
	Deleted int64
	Prev    []KeyValue
}

// TxnResult is the answer to a TxnRequest. Revision is the revision that the transaction
// made, or, if it changed nothing, the one it saw.
type TxnResult struct {
	Revision  Revision
	Succeeded bool
	Results   []OpResult
}

// WatchRequest requests the changes of a span.
type WatchRequest struct {
	Span
	// StartRevision is the first revision to deliver; 0 means the next one. The watch waits
	// for a future revision.
	StartRevision Revision
	// PrevKV fills Event.Prev.
	PrevKV bool
	// NoPut and NoDelete leave out events of that type.
	NoPut, NoDelete bool
	// ProgressNotify requests periodic progress responses while there are no events.
	ProgressNotify bool
	// Fragment exists only in the wire protocol and has no meaning here.
}

// Watch is one running watch.
type Watch interface {
	// Responses delivers until the watch ends, then is closed. A slow reader delays no one
	// and loses nothing: the watch falls back to reading history.
	Responses() <-chan WatchResponse
	// RequestProgress requests one response with Progress set, once everything up to the
	// keyspace's current revision has been delivered. It does not block. One response may
	// answer several pending requests.
	RequestProgress()
}

// WatchResponse carries all events of one or more whole revisions, or the state of the
// watch itself.
type WatchResponse struct {
	// Revision is the revision up to which every change of the span has been delivered,
	// including this response.
	Revision Revision
	Events   []Event
	// Progress marks an answer to RequestProgress or a periodic notification;
	// it has no events.
	Progress bool
	// Answers is the number of RequestProgress calls that this response and earlier ones
	// have answered. A response already in transit when a call arrives does not answer that
	// call. It is 0 if a keyspace cannot count them.
	Answers int64
	// Err ends the watch: ErrCompacted (CompactRevision has the compaction revision) or
	// another failure. No response follows it.
	Err             error
	CompactRevision Revision
}
