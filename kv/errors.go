package kv

import "errors"

// The kinds of error that a keyspace returns. Adapters translate them to
// status codes in one place each; what a keyspace returns wraps one of these
// and adds the operation and the thing, so test with errors.Is.
var (
	ErrCompacted        = errors.New("required revision has been compacted")
	ErrFutureRevision   = errors.New("required revision is a future revision")
	ErrEmptyKey         = errors.New("key is not provided")
	ErrDuplicateKey     = errors.New("duplicate key given in transaction")
	ErrKeyNotFound      = errors.New("key not found")
	ErrInvalidRequest   = errors.New("invalid request")
	ErrTooManyOps       = errors.New("too many operations in transaction")
	ErrRequestTooLarge  = errors.New("request is too large")
	ErrLeaseNotFound    = errors.New("requested lease not found")
	ErrLeaseExists      = errors.New("lease already exists")
	ErrLeaseTTLTooLarge = errors.New("lease time to live is too large")

	// ErrUnknownOutcome: the change may or may not have been made; read back
	// before trying again.
	ErrUnknownOutcome = errors.New("outcome of the change is unknown")
	// ErrUnavailable: not now; trying again is safe.
	ErrUnavailable = errors.New("keyspace is unavailable")
	// ErrOverloaded: too much is waiting already; try again later.
	ErrOverloaded = errors.New("keyspace is overloaded")
	// ErrClosed: the keyspace was closed.
	ErrClosed = errors.New("keyspace is closed")
	// ErrNewerSchema: the data was written by a newer version of Atoll.
	ErrNewerSchema = errors.New("data was written by a newer version")
	// ErrBehind: the database has lost what it had acknowledged, or is another
	// one. Nothing is served until an operator has decided how to go on.
	ErrBehind = errors.New("database is behind what it acknowledged before")
	// ErrRepartitioned: the keyspace was split or merged after it was opened. Nothing
	// has happened; open it again, with the partitions that it has now. Who does not
	// know better takes it for ErrBehind, which it also is: what was known of the
	// keyspace does not hold any more.
	ErrRepartitioned error = repartitioned{}
	// ErrPartitionExists: the keyspace is split there already.
	ErrPartitionExists = errors.New("partition already exists")
	// ErrInUse: another process has the database open.
	ErrInUse = errors.New("database is in use by another process")
)

type repartitioned struct{}

func (repartitioned) Error() string { return "keyspace was split or merged since it was opened" }

func (repartitioned) Is(target error) bool { return target == ErrBehind }
