// Package kv is the contract of a keyspace: an ordered, revisioned key space
// with the semantics of etcd v3's KV, Watch and Lease services.
//
// It says what a keyspace does and which errors it returns, never how. Engines
// (kv/mvcc), wire faces (kv/etcd) and the conformance suite (kv/kvtest) all
// speak these nouns and nothing else about each other.
//
// Memory: byte slices that a caller passes in, and byte slices that a keyspace
// returns, are immutable from then on. Nobody writes to them, so nobody copies.
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
	// CreateRevision is the revision of the put that brought the key to life.
	CreateRevision Revision
	// ModRevision is the revision of the last put of this key.
	ModRevision Revision
	// Version counts the puts since creation, starting at 1.
	Version int64
	// Lease that the key is attached to, or 0.
	Lease LeaseID
}

// EventType tells a put from a deletion.
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
	// Prev is the key as it was before the change; nil if it did not exist,
	// or if the watch did not ask for it.
	Prev *KeyValue
}

// Keyspace is one keyspace, open for use. Its methods may be called from many
// goroutines at once.
//
// Reads are linearizable: a Range with Revision 0 sees every transaction that
// was acknowledged, by any server, before the call began.
type Keyspace interface {
	// Range reads keys, now or at an earlier revision.
	// Errors: ErrCompacted, ErrFutureRevision, ErrEmptyKey.
	Range(ctx context.Context, req RangeRequest) (*RangeResult, error)

	// Txn compares, then does one of two lists of operations, atomically. When
	// it returns without an error the changes are durable. An error wrapping
	// ErrUnknownOutcome means that they may or may not have happened; after any
	// other error nothing has happened.
	// Errors: ErrDuplicateKey, ErrLeaseNotFound, ErrEmptyKey, ErrKeyNotFound
	// (IgnoreValue/IgnoreLease on a missing key), and those of Range.
	Txn(ctx context.Context, req TxnRequest) (*TxnResult, error)

	// Watch delivers every change of a span of keys, each once, in revision
	// order, from req.StartRevision on (0: from now on). It ends when ctx does.
	Watch(ctx context.Context, req WatchRequest) (Watch, error)

	// Compact forgets history before rev: reads and watches below it fail with
	// ErrCompacted from then on. With physical it returns only after the space
	// has been given back. It returns the revision the keyspace is at.
	// Errors: ErrCompacted (rev is at or below an earlier compaction),
	// ErrFutureRevision.
	Compact(ctx context.Context, rev Revision, physical bool) (Revision, error)

	Leases

	// Status describes the keyspace for operators and health checks.
	Status(ctx context.Context) (*Status, error)
}

// Leases are promises to delete keys when nobody renews them. Granting and
// renewing does not make a revision; expiry and revocation make one, if keys
// were attached.
type Leases interface {
	// Grant makes a lease. ID 0 lets the keyspace choose one. TTLs below the
	// keyspace's minimum are raised to it; the granted one is in the result.
	// Errors: ErrLeaseExists, ErrLeaseTTLTooLarge.
	Grant(ctx context.Context, id LeaseID, ttl time.Duration) (*Lease, error)

	// Revoke ends a lease and deletes its keys in one transaction.
	// Errors: ErrLeaseNotFound. Returns the keyspace's revision afterwards.
	Revoke(ctx context.Context, id LeaseID) (Revision, error)

	// KeepAlive starts the lease's time anew.
	// Errors: ErrLeaseNotFound.
	KeepAlive(ctx context.Context, id LeaseID) (*Lease, error)

	// TimeToLive describes a lease; withKeys adds the keys attached to it.
	// Errors: ErrLeaseNotFound.
	TimeToLive(ctx context.Context, id LeaseID, withKeys bool) (*Lease, error)

	// LeaseList names all leases, oldest id first, and the current revision.
	LeaseList(ctx context.Context) ([]LeaseID, Revision, error)
}

// Lease is a lease as of the reply that carries it.
type Lease struct {
	ID LeaseID
	// Granted is the time to live that was granted.
	Granted time.Duration
	// Remaining is what is left of it.
	Remaining time.Duration
	// Keys attached, ascending; only when asked for.
	Keys [][]byte
	// Revision the keyspace was at.
	Revision Revision
}

// Status is what an operator wants to know of a keyspace.
type Status struct {
	Revision Revision
	// Compacted is the last compaction revision, 0 if there was none.
	Compacted Revision
	// Size is what the database uses on disk, in bytes; SizeInUse what of it
	// holds data. Both are of the whole database when keyspaces share one.
	Size, SizeInUse int64
}
