package kv

import "errors"

// The kinds of error that a keyspace returns. Each adapter translates them to status codes
// in one place. A returned error wraps one of these and adds the operation and the object,
// so test with errors.Is.
var (
	ErrCompacted        = errors.New("required revision has been compacted")
	ErrFutureRevision   = errors.New("required revision is a future revision")
	ErrEmptyKey         = errors.New("key is not provided")
	ErrDuplicateKey     = errors.New("duplicate key given in transaction")
	ErrKeyNotFound      = errors.New("key not found")
	ErrInvalidRequest   = errors.New("invalid request")
	ErrTooManyOps       = errors.New("too many operations in transaction")
	ErrRequestTooLarge  = errors.New("request is too large")
	ErrAnswerTooLarge   = errors.New("answer is too large")
	ErrTooManyLeases    = errors.New("too many leases")
	ErrLeaseNotFound    = errors.New("requested lease not found")
	ErrLeaseExists      = errors.New("lease already exists")
	ErrLeaseTTLTooLarge = errors.New("lease time to live is too large")

	// ErrUnknownOutcome is returned when the change may or may not have been made. Read
	// back before retrying.
	ErrUnknownOutcome = errors.New("outcome of the change is unknown")
	// ErrUnavailable is returned for a temporary failure. Retrying is safe.
	ErrUnavailable = errors.New("keyspace is unavailable")
	// ErrNoSpace is returned together with ErrUnavailable or ErrUnknownOutcome if the database's disk is full. Reads
	// continue, and writes as soon as there is space.
	ErrNoSpace = errors.New("no space left for the database")
	// ErrOverloaded is returned when too many requests are waiting. Retry later.
	ErrOverloaded = errors.New("keyspace is overloaded")
	// ErrClosed is returned after the keyspace was closed.
	ErrClosed = errors.New("keyspace is closed")
	// ErrNewerSchema is returned if a newer version of Atoll wrote the data.
	ErrNewerSchema = errors.New("data was written by a newer version")
	// ErrBehind is returned while the database lacks acknowledged writes, or is a different
	// database. Nothing is served until they are back, or an operator accepts the loss.
	ErrBehind = errors.New("database is behind what it acknowledged")
	// ErrRepartitioned is returned if the keyspace was split, merged or renamed after it was
	// opened. Nothing has happened; reopen it with its present partitions. It also matches
	// ErrBehind, because cached knowledge of the keyspace is no longer valid: code that
	// does not know this error treats it as ErrBehind.
	ErrRepartitioned error = repartitioned{}
	// ErrDropped is returned if the keyspace was dropped after it was opened. It is permanent:
	// no retry and no other server helps, and a keyspace that is opened under the same name
	// later is another one. A write that fails with it may have been committed before the drop;
	// no client can read it either way. It does not match ErrBehind, because nothing is lost
	// that could come back, and an operator has nothing to do.
	ErrDropped = errors.New("keyspace was dropped")
	// ErrRenamed is returned if the keyspace got another name after it was opened. It also matches
	// ErrDropped, because nothing has the old name any more: code that does not know this error
	// treats it as ErrDropped. The keyspace has the writes that were acknowledged, and may have
	// one that fails with this error.
	ErrRenamed error = renamed{}
	// ErrKeyspaceExists is returned if another keyspace has the name.
	ErrKeyspaceExists = errors.New("keyspace exists")
	// ErrPartitionExists is returned if the keyspace is already split at that prefix.
	ErrPartitionExists = errors.New("partition already exists")
	// ErrDamaged is returned if the files of a database lack a part of acknowledged writes.
	ErrDamaged = errors.New("database is damaged")
	// ErrInUse is returned if another process has the database open.
	ErrInUse = errors.New("database is in use by another process")
)

type repartitioned struct{}

func (repartitioned) Error() string {
	return "keyspace was split, merged or renamed since it was opened"
}

func (repartitioned) Is(target error) bool { return target == ErrBehind }

type renamed struct{}

func (renamed) Error() string { return "keyspace was renamed since it was opened" }

func (renamed) Is(target error) bool { return target == ErrDropped }
