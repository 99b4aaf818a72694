// Package kv is the contract of a keyspace: an ordered, revisioned key space with the
// semantics of etcd v3's KV, Watch and Lease services.
//
// It defines behaviour and errors, not mechanism. Engines (kv/mvcc), wire adapters
// (kv/etcd) and the conformance suite (kv/kvtest) share these types and know nothing else
// about each other.
//
// Memory: byte slices that a caller passes in, and byte slices that a keyspace returns, are
// immutable from then on. They are never written to, so they are never copied.
package kv

import (
	"context"
	"time"
)

// Revision counts the transactions that changed a keyspace. An empty keyspace
// is at revision 1, as in etcd; the first change makes revision 2. All changes
// of one transaction share its revision.
type Revision = int64

// LeaseID names a lease within its keyspace. 0 means "no lease".
type LeaseID = int64

// KeyValue is one key as of some revision.
type KeyValue struct {
	Key   []byte
	Value []byte
	// CreateRevision is the revision of the put that created the key.
	CreateRevision Revision
	// ModRevision is the revision of the last put of this key.
	ModRevision Revision
	// Version counts the puts since creation, starting at 1.
	Version int64
	// Lease is the lease that the key is attached to, or 0.
	Lease LeaseID
}

// EventType distinguishes a put from a deletion.
type EventType uint8

const (
	EventPut EventType = iota
	EventDelete
)

// Event is one change of one key. For EventDelete, KV has only Key and
// ModRevision (the revision of the deletion) set.
type Event struct {
	Type EventType
	KV   KeyValue
	// Prev is the key before the change. It is nil if the key did not exist, or if the
	// watch did not request it.
	Prev *KeyValue
}

// Keyspace is one open keyspace. Its methods are safe for concurrent use.
//
// Reads are linearizable: a Range with Revision 0 sees every transaction that any server
// acknowledged before the call began.
type Keyspace interface {
	// Range reads keys, now or at an earlier revision.
	// Errors: ErrCompacted, ErrFutureRevision, ErrEmptyKey.
	Range(ctx context.Context, req RangeRequest) (*RangeResult, error)

	// Txn evaluates the compares, then atomically runs one of two lists of operations. If
	// it returns no error, the changes are durable. An error that wraps ErrUnknownOutcome
	// means that they may or may not have happened. After any other error nothing has
	// happened.
	// Errors: ErrDuplicateKey, ErrLeaseNotFound, ErrEmptyKey, ErrKeyNotFound
	// (IgnoreValue/IgnoreLease on a missing key), and those of Range.
	Txn(ctx context.Context, req TxnRequest) (*TxnResult, error)

	// Watch delivers every change of a span of keys, each once, in revision order, from
	// req.StartRevision on (0: from now on). It ends when ctx does.
	Watch(ctx context.Context, req WatchRequest) (Watch, error)

	// Compact discards history before rev: reads and watches below it then fail with
	// ErrCompacted. With physical it returns only after the space has been freed. It
	// returns the keyspace's current revision.
	// Errors: ErrCompacted (rev is at or below an earlier compaction), ErrFutureRevision.
	Compact(ctx context.Context, rev Revision, physical bool) (Revision, error)

	Leases

	// Status describes the keyspace for operators and health checks.
	Status(ctx context.Context) (*Status, error)
}

// Leases are promises to delete keys that are not renewed. Granting and renewing a lease
// makes no revision; expiry and revocation make one, if keys were attached.
type Leases interface {
	// Grant creates a lease. With ID 0 the keyspace chooses one. TTLs below the keyspace's
	// minimum are raised to it; the result has the granted TTL.
	// Errors: ErrLeaseExists, ErrLeaseTTLTooLarge.
	Grant(ctx context.Context, id LeaseID, ttl time.Duration) (*Lease, error)

	// Revoke ends a lease and deletes its keys in one transaction. It returns the
	// keyspace's revision afterwards.
	// Errors: ErrLeaseNotFound.
	Revoke(ctx context.Context, id LeaseID) (Revision, error)

	// KeepAlive renews the lease for its full TTL.
	// Errors: ErrLeaseNotFound.
	KeepAlive(ctx context.Context, id LeaseID) (*Lease, error)

	// TimeToLive describes a lease; withKeys adds the keys attached to it.
	// Errors: ErrLeaseNotFound.
	TimeToLive(ctx context.Context, id LeaseID, withKeys bool) (*Lease, error)

	// LeaseList returns the IDs of all leases, ascending, and the current revision.
	LeaseList(ctx context.Context) ([]LeaseID, Revision, error)
}

// Lease is a lease at the time of the reply.
type Lease struct {
	ID LeaseID
	// Granted is the granted time to live.
	Granted time.Duration
	// Remaining is the time left.
	Remaining time.Duration
	// Keys are the attached keys, ascending; only when requested.
	Keys [][]byte
	// Revision is the keyspace's revision at the reply.
	Revision Revision
}

// Status describes a keyspace to operators.
type Status struct {
	Revision Revision
	// Compacted is the last compaction revision, 0 if there was none.
	Compacted Revision
	// Size is the database's size on disk in bytes; SizeInUse is the part that holds data.
	// Both cover the whole database when keyspaces share one.
	Size, SizeInUse int64
}
