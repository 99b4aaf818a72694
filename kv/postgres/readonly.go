package postgres

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// readOnlyConns is the number of connections for inspecting a database.
const readOnlyConns = 4

// OpenReadOnly opens an existing database for reading only, beside servers that use it:
// nothing is created, upgraded or written. If its URL names one host, that may be a
// standby.
// Errors: fs.ErrNotExist if no keyspace was ever stored there, kv.ErrNewerSchema,
// kv.ErrInvalidRequest, kv.ErrUnavailable.
func OpenReadOnly(ctx context.Context, url string, opts ...Option) (*DB, error) {
	return open(ctx, url, append(opts, func(o *options) {
		o.readOnly, o.acceptLoss, o.maxConns = true, true, readOnlyConns
	}))
}

// nothingError is returned if no keyspace was ever stored in a database.
type nothingError struct{ where, schema string }

func (e *nothingError) Error() string {
	return fmt.Sprintf("database %s has no keyspaces (there is no schema %q with Atoll's tables): check the URL, or start a server on it, which creates them", e.where, e.schema)
}

func (e *nothingError) Is(target error) bool { return target == fs.ErrNotExist }

// checkSchema refuses a schema of another version: an upgrade would write.
func (db *DB) checkSchema(ctx context.Context, c *pgconn.PgConn) error {
	version, made, err := db.schemaVersion(ctx, c, "")
	switch ours := len(migrations); {
	case err != nil:
		return err
	case !made:
		return &nothingError{db.where, db.opts.schema}
	case version > ours:
		return db.newerSchema(version)
	case version < ours:
		return fmt.Errorf("%w: schema %q has the old version %d; start a server of this version on it once, which upgrades it to %d",
			kv.ErrInvalidRequest, db.opts.schema, version, ours)
	}
	return nil
}

func (db *DB) newerSchema(version int) error {
	return fmt.Errorf("%w: schema %q has version %d, but this program supports only up to %d; upgrade Atoll",
		kv.ErrNewerSchema, db.opts.schema, version, len(migrations))
}

// writable refuses writes to a database that was opened for reading.
func (t *table) writable(op string) error {
	return t.db.writable(fmt.Sprintf("%s keyspace %q", op, t.name))
}

func (db *DB) writable(what string) error {
	if db.opts.readOnly {
		return fmt.Errorf("%s: %w: database %s is open for reading only", what, kv.ErrInvalidRequest, db.where)
	}
	return nil
}
