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
	// Limit on the number of keys returned; 0 means none. It does not change
	// Count.
	Limit int64
	// CountOnly returns no keys, only their number.
	CountOnly bool
	// KeysOnly leaves values out.
	KeysOnly bool

	SortTarget SortTarget
	SortOrder  SortOrder

	// Bounds on revisions of the keys returned; 0 means none. As in etcd they
	// filter what is returned and do not change Count.
	MinModRevision, MaxModRevision       Revision
	MinCreateRevision, MaxCreateRevision Revision

	// Serializable permits an answer from a snapshot that may be stale.
	Serializable bool
}

// RangeResult is the answer to a RangeRequest.
type RangeResult struct {
	// Revision the keyspace was at; no change above it is in the answer.
	Revision Revision
	KVs      []KeyValue
	// More is true if Limit cut the answer short.
	More bool
	// Count of keys in the span at the revision read, whatever the limit.
	Count int64
}

// CompareTarget is what a Compare looks at.
type CompareTarget uint8

const (
	CompareVersion CompareTarget = iota
	CompareCreate
	CompareMod
	CompareValue
	CompareLease
)

// CompareOp is how it looks.
type CompareOp uint8

const (
	Equal CompareOp = iota
	Greater
	Less
	NotEqual
)

// Compare is a condition on a key, or on every key of a span. A single key
// that does not exist compares as version, revisions and lease 0, and fails
// every comparison of its value. So does a span without keys, as in etcd.
type Compare struct {
	Span
	Target CompareTarget
	Op     CompareOp
	// Int is compared for all targets but CompareValue, Value for that one.
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
	// PrevKV asks for what was there before.
	PrevKV bool
	// IgnoreValue and IgnoreLease keep what is there; the key must exist.
	IgnoreValue, IgnoreLease bool
}

// DeleteOp deletes the keys of a span.
type DeleteOp struct {
	Span
	PrevKV bool
}

// TxnRequest does Then if every Compare holds, Else otherwise. Operations see
// the state that earlier operations of the same transaction made; compares,
// those of nested transactions included, see the state before it began, as in
// etcd. A key may be put only once, and not put and deleted, on one path.
type TxnRequest struct {
	If   []Compare
	Then []Op
	Else []Op
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

// TxnResult is the answer to a TxnRequest. Revision is the revision that the
// transaction made, or, if it changed nothing, the one it saw.
type TxnResult struct {
	Revision  Revision
	Succeeded bool
	Results   []OpResult
}

// WatchRequest asks for the changes of a span.
type WatchRequest struct {
	Span
	// StartRevision is the first revision of interest; 0 means the next one.
	// A revision not yet reached is waited for.
	StartRevision Revision
	// PrevKV fills Event.Prev.
	PrevKV bool
	// NoPut and NoDelete leave out events of that type.
	NoPut, NoDelete bool
	// ProgressNotify asks for progress responses while nothing happens.
	ProgressNotify bool
	// Fragment is a matter of the wire and has no meaning here.
}

// Watch is one running watch.
type Watch interface {
	// Responses delivers until the watch ends, then closes. A slow reader makes
	// nobody wait and loses nothing: the watch falls back to reading history.
	Responses() <-chan WatchResponse
	// RequestProgress asks for one response with Progress set, once everything
	// up to the revision that the keyspace is at now has been delivered. It
	// does not block; requests still open may be answered together.
	RequestProgress()
}

// WatchResponse carries all events of one or more whole revisions, or news
// about the watch itself.
type WatchResponse struct {
	// Revision: every change of the span up to it has been delivered, this
	// response included.
	Revision Revision
	Events   []Event
	// Progress marks an answer to RequestProgress or a periodic notification;
	// it has no events.
	Progress bool
	// Answers is how many calls of RequestProgress have been answered, by this
	// response and those before it. One that was on its way when the next call came
	// does not answer that call. 0 also where a keyspace cannot tell.
	Answers int64
	// Err ends the watch: ErrCompacted (CompactRevision says up to where),
	// or what else went wrong. No response follows it.
	Err             error
	CompactRevision Revision
}
