package kv

import "context"

// Backend is one SQL database that holds any number of keyspaces. Each dialect (kv/sqlite,
// kv/postgres) implements it; kv/mvcc builds keyspaces on it. It only stores and finds
// records; all semantics are in the engine.
type Backend interface {
	// Open opens the keyspace with that name. A new one is created at revision 1.
	Open(ctx context.Context, keyspace string) (Table, error)
	// OpenExisting opens the keyspace with that name, and creates none. A server whose
	// knowledge of the keyspaces may be outdated uses it, so that it does not create a
	// dropped one again.
	// Errors: ErrKeyNotFound (no such keyspace).
	OpenExisting(ctx context.Context, keyspace string) (Table, error)
	// Keyspaces returns the names of all keyspaces, ascending.
	Keyspaces(ctx context.Context) ([]string, error)
	// Partitions returns the prefixes of a keyspace's partitions, in the order of their
	// names. Its cost does not depend on the number of other keyspaces.
	Partitions(ctx context.Context, keyspace string) (prefixes []string, err error)
	// Size returns the database's size on disk and the part that holds data.
	Size(ctx context.Context) (total, inUse int64, err error)
	Close() error
}

// Identified is a Backend that can tell its database from a copy of it.
type Identified interface {
	Backend
	// Instance identifies the running database. It is another one for a copy of the
	// database's files, and after a standby has taken over.
	Instance(ctx context.Context) (string, error)
}

// Head is the current state of a keyspace's revisions.
type Head struct {
	Revision  Revision
	Compacted Revision
}

// Change is one row of a keyspace's log: one transaction's change of one key. Changes are
// ordered by (KV.ModRevision, Sub).
type Change struct {
	// Sub orders the changes of one revision, from 0.
	Sub int64
	// KV after the change; for a deletion only Key and ModRevision.
	KV      KeyValue
	Deleted bool
	// PrevRevision is the ModRevision of the replaced state, 0 if the key did not exist.
	PrevRevision Revision
	// Prev is set if the read requested previous values, and if it has not been compacted.
	Prev *KeyValue
}

// Table is one keyspace in a database.
type Table interface {
	// Update runs fn in a transaction that locks the keyspace's head against all other
	// writers, here and in other processes. It commits durably if fn returns nil. One
	// Update is one commit, however many client transactions fn runs. The database may
	// require a retry: fn may then run again from the start, so it must have no effect but
	// through its Tx. An error that wraps ErrUnknownOutcome means that the commit may have
	// happened.
	//
	// prefetch lists keys that fn will most likely Load. A table reached over a network
	// fetches them together with the head. It may be nil.
	Update(ctx context.Context, prefetch []Lookup, fn func(Tx) error) error

	// Head reads the keyspace's head (linearizable).
	Head(ctx context.Context) (Head, error)

	// Range reads req.Span from one snapshot, at req.Revision or at the head, ascending by
	// key, and returns the head of that snapshot. A Table ignores sorting and the bounds on
	// revisions: the engine applies them. It does not validate req.Revision either, except
	// that a revision below Head.Compacted returns ErrCompacted and one above Head.Revision
	// returns ErrFutureRevision. If wantCount is false, Count may be left 0.
	Range(ctx context.Context, req RangeRequest, wantCount bool) (*RangeResult, Head, error)

	// Changes reads the log: all changes with after < revision <= upTo, oldest first, whole
	// revisions only, stopping after the revision that reaches limit rows. withPrev fills
	// Change.Prev. It also returns the head: if after < Head.Compacted, rows may be
	// missing.
	Changes(ctx context.Context, after, upTo Revision, limit int, withPrev bool) ([]Change, Head, error)

	// SetCompacted durably makes rev the compaction revision. Sweep frees the space.
	SetCompacted(ctx context.Context, rev Revision) error
	// Sweep removes up to limit log rows that no read at or above the compaction revision
	// can need, in a short transaction of its own. more reports whether there are more such
	// rows.
	Sweep(ctx context.Context, limit int) (more bool, err error)

	// Leases reads all leases.
	Leases(ctx context.Context) ([]LeaseRecord, error)
	// Usage returns what the keyspace has stored, from one snapshot: the numbers that its last
	// commit has stored, or else it counts all keys.
	Usage(ctx context.Context) (Usage, Head, error)
	// LeaseKeys reads the keys attached to a lease, ascending.
	LeaseKeys(ctx context.Context, id LeaseID) ([][]byte, Head, error)
}

// LeaseRecord is a stored lease.
type LeaseRecord struct {
	ID LeaseID
	// TTL in seconds, as granted.
	TTL int64
	// Beat is the lease's heartbeat counter: each renewal increments it, from any start
	// value. Engines that share a table see from it that a lease is alive, each by its own
	// clock, so clocks of different servers are never compared.
	Beat int64
}

// Lookup requests the current state of a single key. Without WithValue the answer may lack
// its value.
type Lookup struct {
	Key       []byte
	WithValue bool
	// Lease is set instead of Key, only in prefetch lists: fn will most likely request this
	// lease. A Table may ignore it.
	Lease LeaseID
}

// Tx is a Table inside Update.
type Tx interface {
	Head() Head
	// Load reads the current state of single keys: result i is for keys[i], nil if the key
	// does not exist.
	Load(keys []Lookup) ([]*KeyValue, error)
	// Range reads the state at the start of Update, or an older one.
	Range(req RangeRequest, wantCount bool) (*RangeResult, error)
	// Write records changes and moves the head to revision. It is called at most once,
	// last. changes are ordered; a key that changes more than once has an entry for each
	// change.
	Write(revision Revision, changes []Change) error

	// Usage is that of the table at the head.
	Usage() (Usage, error)
	// SetUsage stores the usage after the changes, together with the new head. It is called
	// before Write, or not at all: then the next call that needs the usage counts.
	SetUsage(after Usage)

	Lease(id LeaseID) (*LeaseRecord, error) // nil if it does not exist
	PutLease(l LeaseRecord) error           // creates or replaces
	DeleteLease(id LeaseID) error
	LeaseKeys(id LeaseID) ([][]byte, error)
}

// ExclusiveTable is a Table that knows whether only this process, and only through this
// value, writes to it. If so, an engine may answer reads from its own writes.
type ExclusiveTable interface {
	Table
	Exclusive() bool
}

// DropNotifier is a Table that calls engines when its keyspace is dropped. An engine that
// answers reads from memory, or waits without reading, would not notice otherwise.
type DropNotifier interface {
	Table
	// OnDrop has dropped called with an ErrDropped, once, before Drop returns. If the
	// keyspace was dropped already, OnDrop itself calls it. dropped must not block. No call
	// begins after stop has returned.
	OnDrop(dropped func(error)) (stop func())
}

// IdentifiedTable is a Table that can tell its keyspace from a later one of the same name.
type IdentifiedTable interface {
	Table
	// ID is the keyspace's number in its database, which no other keyspace ever gets.
	ID() int64
}

// KeyLimiter is a Table with a maximum key length. Engines refuse longer keys before they
// share a commit with others.
type KeyLimiter interface {
	Table
	MaxKeyBytes() int
}

// Recoverer is a Table that other processes may have open, and that can revoke their
// access.
type Recoverer interface {
	Table
	// Recover is an Update that also compacts at the revision that fn reaches, and gives
	// the keyspace a new identity, in the same commit. From then on every call of a process
	// that had it open, or knew it before, fails with ErrBehind.
	Recover(ctx context.Context, fn func(Tx) error) error
}

// SharedTable is a Table that other processes may write to.
//
// The database may be older than what the Table has already returned (a lagging standby
// took over, a backup was restored), or belong to another history. Then every call fails
// with ErrBehind, because clients have seen state that is lost, until that state is back.
type SharedTable interface {
	Table
	// Follow calls notify with a revision that the keyspace has reached, soon after any
	// process made it, until ctx ends. Revisions are hints: some may be left out or
	// repeated. notify must not block, and is not called while calls fail with ErrBehind.
	// Follow returns ctx's error, ErrRepartitioned or ErrDropped; it survives all other
	// failures.
	Follow(ctx context.Context, notify func(Revision)) error
}

// OptimisticTable is a SharedTable that can commit changes computed without holding the
// head, provided that none of their inputs has changed meanwhile. Writers in several
// processes then wait only for each other's commits, and not for the reads and computation
// before them.
type OptimisticTable interface {
	SharedTable
	// TryUpdate is Update for an fn that depends only on the keys and leases that it loads,
	// and on the head only to number its revisions. fn runs once, on a head that other
	// writers may have passed by the time of the commit. Its changes then follow the actual
	// head, which TryUpdate returns: each revision above fn's head is raised by the
	// distance that the head has moved.
	//
	// done is false if nothing has happened: another writer has changed a key that fn
	// loaded, or fn made a request that needs the locked head, or fn changed nothing. The
	// caller then uses Update. An error has the same meaning as for Update.
	TryUpdate(ctx context.Context, prefetch []Lookup, fn func(Tx) error) (follows Head, done bool, err error)
}
