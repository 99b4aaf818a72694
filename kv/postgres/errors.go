package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
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
	// Whether a statement was completed is not known.
	codeUnknown = "40003"
)

// contended tells whether an error comes from others who want the same, and
// will be out of the way at once.
func (d *dialect) contended(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && d.again(pgErr)
}

// transient tells whether an error will pass by itself, so that an operation
// that has had no effect should be tried again.
func (d *dialect) transient(err error) bool {
	if _, ok := errors.AsType[*lostError](err); ok {
		return true
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		if d.again(pgErr) || d.passing(pgErr) {
			return true
		}
		switch pgErr.Code {
		// The server is starting, ending or crashed; it has too many connections;
		// it has become a standby.
		case "57P01", "57P02", "57P03", "57P05", "25P03", "53300", codeReadOnly:
			return true
		}
		return strings.HasPrefix(pgErr.Code, "08")
	}
	if connectErr, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return connectErr != nil
	}
	// Of the driver, while opening: the connection is gone.
	if pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	var netErr net.Error
	return errors.As(err, &netErr)
}

// remedy says for some errors what an operator can do.
func remedy(err error) string {
	const standby = " (the database is a standby, or set to read-only: promote it, or name the primary among the hosts)"
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		// The driver has no value for this one.
		if strings.Contains(err.Error(), "read only connection") {
			return standby
		}
		return ""
	}
	switch pgErr.Code {
	case "53100":
		return " (free disk space on the database's machine; writing goes on by itself)"
	case "53300":
		return " (the database allows too few connections: raise max_connections, or lower pool_max_conns)"
	case codeReadOnly:
		return standby
	case codePrivilege:
		return " (the role lacks a right: let it own the schema)"
	case "28P01", "28000":
		return " (check user, password and pg_hba.conf)"
	case "3D000":
		return " (create the database)"
	case codeLockTimeout:
		return " (another server holds the keyspace; if it is frozen it is thrown out soon)"
	case "XX001", "XX002":
		return " (the database is damaged: restore it)"
	}
	return ""
}

// fail turns an error of the database into one of the contract's; those stay
// as they are, and so does the caller's giving up.
func (db *DB) fail(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{kv.ErrUnavailable, kv.ErrUnknownOutcome, kv.ErrBehind, kv.ErrClosed, kv.ErrCompacted,
		kv.ErrFutureRevision, kv.ErrKeyNotFound, kv.ErrPartitionExists, fs.ErrNotExist, kv.ErrNewerSchema, kv.ErrInvalidRequest, kv.ErrRequestTooLarge} {
		if errors.Is(err, own) {
			return err
		}
	}
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	return fmt.Errorf("%s: database %s: %w: %w%s", op, db.where, kv.ErrUnavailable, err, remedy(err))
}
