package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// Codes of the SQL standard and of PostgreSQL, appendix A of its manual.
const (
	codeSerialization   = "40001"
	codeDeadlock        = "40P01"
	codeLockTimeout     = "55P03"
	codeDuplicate       = "23505"
	codeUndefinedTable  = "42P01"
	codeUndefinedSchema = "3F000"
	codePrivilege       = "42501"
	codeReadOnly        = "25006"
	codeCanceled        = "57014"
	// The transaction has failed before, or was ended.
	codeFailedTransaction = "25P02"
	codeInternal          = "XX000"
	codeDiskFull          = "53100"
	// It is unknown whether a statement was completed.
	codeUnknown = "40003"
)

// contended reports whether an error is caused by concurrent transactions, so that a retry
// will soon succeed.
func (d *dialect) contended(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && d.again(pgErr)
}

// transient reports whether an error is temporary, so that an operation without an effect
// should be retried.
func (d *dialect) transient(err error) bool {
	if _, ok := errors.AsType[*lostError](err); ok {
		return true
	}
	if _, ok := errors.AsType[unsettledError](err); ok {
		return true
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		if d.again(pgErr) || d.passing(pgErr) {
			return true
		}
		switch pgErr.Code {
		// The server is starting, stopping or crashed, has too many connections, or has
		// become a standby.
		case "57P01", "57P02", "57P03", "57P05", "25P03", "53300", codeReadOnly:
			return true
		}
		return strings.HasPrefix(pgErr.Code, "08") && !poolerRefuses(pgErr)
	}
	if connectErr, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return connectErr != nil
	}
	// Errors of the driver while connecting: the connection is gone.
	if pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	var netErr net.Error
	return errors.As(err, &netErr)
}

// codePooler is PgBouncer's code for all of its own errors (a violation of the protocol).
const codePooler = "08P01"

// poolerRefuses reports whether an error is a pooler's, and will not end by itself.
func poolerRefuses(err *pgconn.PgError) bool {
	return err.Code == codePooler && contains(err.Message, "unsupported startup parameter", "not allowed in statement pooling mode",
		"no such database", "no such user", "authentication failed", "not allowed to", "config error")
}

const waitingForStandby = " (commits wait for the synchronous standby, which does not answer: restore it, or remove it from synchronous_standby_names)"

// remedy returns the remedy for some errors.
func remedy(err error) string {
	const standby = " (the database is a standby, or set to read-only: promote it, or name the primary among the hosts)"
	if _, ok := errors.AsType[*standbyError](err); ok {
		return waitingForStandby
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if isTimeout(err) {
			return " (the database does not answer: check its machine, and the network between)"
		}
		// The driver has no error value for this one.
		if strings.Contains(err.Error(), "read only connection") {
			return standby
		}
		if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
			return " (check that the database is running there, and that this machine can reach it)"
		}
		return ""
	}
	switch pgErr.Code {
	case codeDiskFull:
		return " (free disk space on the database's machine; writes then resume automatically)"
	case "53300":
		return " (the database allows too few connections: increase max_connections, or decrease pool_max_conns)"
	case codeReadOnly:
		return standby
	case codePrivilege:
		return " (the role lacks a privilege: make it the owner of the schema)"
	case "28P01", "28000":
		return " (check user, password and pg_hba.conf)"
	case "3D000":
		return " (create the database)"
	case codePooler:
		return " (it is the error of a pooler such as PgBouncer; " + sessionPooling + ")"
	case "42P05", "26000":
		return " (a pooler mixes the sessions of its clients; " + sessionPooling + ")"
	case codeUndefinedTable:
		return " (the tables are not found: if a pooler is between, " + sessionPooling + "; otherwise check whether the schema was removed)"
	case codeLockTimeout:
		return " (another server holds the lock of the keyspace; if it is frozen, its session is terminated soon)"
	case "XX001", "XX002":
		return " (the database is damaged: restore it)"
	}
	return ""
}

// fail converts an error of the database to one of kv's errors. Errors of kv and of the
// caller's context stay as they are.
func (db *DB) fail(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{kv.ErrUnavailable, kv.ErrUnknownOutcome, kv.ErrBehind, kv.ErrDropped, kv.ErrClosed, kv.ErrCompacted,
		kv.ErrFutureRevision, kv.ErrKeyNotFound, kv.ErrPartitionExists, kv.ErrKeyspaceExists, fs.ErrNotExist, kv.ErrNewerSchema, kv.ErrInvalidRequest, kv.ErrRequestTooLarge} {
		if errors.Is(err, own) {
			return err
		}
	}
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == codeDiskFull {
		err = fmt.Errorf("%w: %w", kv.ErrNoSpace, err)
	}
	return fmt.Errorf("%s: database %s: %w: %w%s", op, db.where, kv.ErrUnavailable, oneLine{err}, cmp.Or(tlsRemedy(err, db.opts.verified), remedy(err)))
}

// oneLine prints an error in one line. The driver's errors have one for each address, with and
// without TLS, which often say the same.
type oneLine struct{ error }

func (e oneLine) Unwrap() error { return e.error }

func (e oneLine) Error() string {
	var out strings.Builder
	var seen []string
	for line := range strings.Lines(e.error.Error()) {
		line = strings.TrimSpace(line)
		if line == "" || slices.Contains(seen, line) {
			continue
		}
		seen = append(seen, line)
		switch so := out.String(); {
		case so == "":
		case strings.HasSuffix(so, ":"):
			out.WriteString(" ")
		default:
			out.WriteString("; ")
		}
		out.WriteString(line)
	}
	return out.String()
}
