package kv

import "context"

// Backend is one SQL database that holds any number of keyspaces. Each
// dialect (kv/sqlite, kv/postgres) implements it; kv/mvcc builds
// keyspaces on it. It stores and finds records; it decides nothing.
type Backend interface {
	// Open opens the keyspace of that name, made at revision 1 if it is new.
	Open(ctx context.Context, keyspace string) (Table, error)
	// Keyspaces names all that exist, ascending.
	Keyspaces(ctx context.Context) ([]string, error)
	// Size is what the database uses on disk and what of it holds data.
	Size(ctx context.Context) (total, inUse int64, err error)
	Close() error
}

// Head is where a keyspace stands.
type Head struct {
	Revision  Revision
	Compacted Revision
}

// Change is one row of a keyspace's log: what one transaction did to one key.
// Changes are ordered by (KV.ModRevision, Sub).
type Change struct {
	// Sub orders the changes of one revision, from 0.
	Sub int64
	// KV after the change; of a deletion only Key and ModRevision.
	KV      KeyValue
	Deleted bool
	// PrevRevision is the ModRevision of what the change replaced, 0 if the
	// key did not exist.
	PrevRevision Revision
	// Prev is filled when read with values of predecessors asked for, and
	// where it has not been compacted.
	Prev *KeyValue
}

// Table is one keyspace in a database.
type Table interface {
	// Update runs fn in a transaction that holds the keyspace's head against
	// all other writers, here and in other processes, and commits durably if fn
	// returns nil. One Update is one commit, however many client transactions
	// fn carries out. fn may be run again from the start if the database asks for
	// it, so it must have no effect but through its Tx. An error that wraps ErrUnknownOutcome means that the commit
	// may have happened.
	//
	// ahead names keys that fn will most likely Load: a table with a network in
	// between fetches them together with the head. It may be nil.
	Update(ctx context.Context, ahead []Lookup, fn func(Tx) error) error

	// Head reads where the keyspace stands (linearizable).
	Head(ctx context.Context) (Head, error)

	// Range reads req.Span from one snapshot, at req.Revision or at the head,
	// ascending by key, and tells the head of that snapshot. Sorting and the bounds on
	// revisions are the engine's business: a Table ignores them. It does not judge
	// req.Revision either, but a revision below Head.Compacted gives ErrCompacted
	// and one above Head.Revision ErrFutureRevision. wantCount false permits
	// Count to be left 0.
	Range(ctx context.Context, req RangeRequest, wantCount bool) (*RangeResult, Head, error)

	// Changes reads the log: everything in after < revision <= upTo, oldest
	// first, whole revisions only, stopping after the revision that reaches
	// limit rows. withPrev fills Change.Prev. It also tells the head, so that a
	// caller who finds after < Head.Compacted knows that rows may be missing.
	Changes(ctx context.Context, after, upTo Revision, limit int, withPrev bool) ([]Change, Head, error)

	// SetCompacted makes rev the compaction revision, durably. The space is
	// given back by Sweep.
	SetCompacted(ctx context.Context, rev Revision) error
	// Sweep removes up to limit log rows that no read at or above the compaction
	// revision can need, in a short transaction of its own, and tells whether
	// there is more.
	Sweep(ctx context.Context, limit int) (more bool, err error)

	// Leases reads all leases.
	Leases(ctx context.Context) ([]LeaseRecord, error)
	// LeaseKeys reads the keys attached to a lease, ascending.
	LeaseKeys(ctx context.Context, id LeaseID) ([][]byte, Head, error)
}

// LeaseRecord is a lease as it is stored.
type LeaseRecord struct {
	ID LeaseID
	// TTL in seconds, as granted.
	TTL int64
	// Beat counts renewals, from any number on. Engines that share a table see by
	// it that a lease is alive, each by its own clock: no two clocks are ever
	// compared.
	Beat int64
}

// Lookup asks for the current state of a single key. Without WithValue the answer
// may lack its value.
type Lookup struct {
	Key       []byte
	WithValue bool
	// Lease instead of Key, among what is given ahead only: fn will most likely
	// ask for this Lease. A Table may ignore it.
	Lease LeaseID
}

// Tx is a Table inside Update.
type Tx interface {
	Head() Head
	// Load reads the current state of single keys: result i is for keys[i], nil
	// where the key does not exist.
	Load(keys []Lookup) ([]*KeyValue, error)
	// Range reads the state at the start of Update, or an older one.
	Range(req RangeRequest, wantCount bool) (*RangeResult, error)
	// Write records changes and moves the head to revision. It is called at
	// most once, last; changes are ordered, and each key that changes more than
	// once is there more than once.
	Write(revision Revision, changes []Change) error

	Lease(id LeaseID) (*LeaseRecord, error) // nil if there is none
	PutLease(l LeaseRecord) error           // made or replaced
	DeleteLease(id LeaseID) error
	LeaseKeys(id LeaseID) ([][]byte, error)
}

// ExclusiveTable is a Table that can tell that only this process writes to it,
// and only through this value. An engine may then answer from what it wrote.
type ExclusiveTable interface {
	Table
	Exclusive() bool
}

// KeyLimiter is a Table that cannot hold every key. Engines refuse longer ones
// before they share a commit with others.
type KeyLimiter interface {
	Table
	MaxKeyBytes() int
}

// Recoverer is a Table that other processes may have open, and that can take it
// away from them.
type Recoverer interface {
	Table
	// Recover is Update which also compacts at the revision that fn reaches, and
	// makes the keyspace another one, in the same commit: every call of those who have it
	// open, or have known it before, fails with ErrBehind from then on.
	Recover(ctx context.Context, fn func(Tx) error) error
}

// SharedTable is a Table that other processes may write to.
//
// If what it finds is older than what it has told before (a standby took over
// that lagged, a backup was restored), or is of another history, every call
// fails with ErrBehind from then on: whoever uses it has seen what is lost.
type SharedTable interface {
	Table
	// Follow calls heard with a revision that the keyspace has reached, soon
	// after any process made it, until ctx ends. It is a hint: revisions may be
	// left out or told twice, and heard must not block. It returns ctx's error, or
	// ErrBehind; it outlives everything else.
	Follow(ctx context.Context, heard func(Revision)) error
}

// OptimisticTable is a SharedTable that can commit what was worked out while nobody
// held the head, provided that nothing it depends on has changed meanwhile. Writers
// in several processes then wait for each other's commits only, and not for what
// each of them has to ask and think about before.
type OptimisticTable interface {
	SharedTable
	// TryUpdate is Update for an fn that depends on nothing but the keys and leases
	// it loads, and on the head only in that it counts revisions up from it. fn runs once, on
	// a head that others may have gone beyond by the time of the commit. The changes
	// then follow on the head as it is, which TryUpdate returns: each revision above
	// fn's is higher by as much as the head has moved.
	//
	// done is false if nothing has happened: another writer has changed what fn
	// loaded, or fn asked for what has to be asked under the head, or changed
	// nothing. Update is the way then. An error means what it means of Update.
	TryUpdate(ctx context.Context, ahead []Lookup, fn func(Tx) error) (follows Head, done bool, err error)
}
