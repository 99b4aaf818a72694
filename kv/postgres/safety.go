package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// prepare finds out what the database is, refuses one that is not safe, and
// brings the schema up to date, on a connection of its own.
func (db *DB) prepare(ctx context.Context) error {
	return db.retry(ctx, "open", func() error {
		c, err := pgconn.ConnectConfig(ctx, db.plain)
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		found, err := detect(ctx, c)
		if err != nil {
			return err
		}
		db.dialect = found
		if err := db.checkServer(ctx, c); err != nil {
			return err
		}
		if db.opts.readOnly {
			return db.checkSchema(ctx, c)
		}
		return db.migrate(ctx, c)
	})
}

// detect chooses the dialect by what the server says of itself. Whoever else
// speaks the protocol is refused: nobody knows what it promises.
func detect(ctx context.Context, c *pgconn.PgConn) (*dialect, error) {
	rows, err := execText(ctx, c, "SELECT version()")
	if err != nil {
		return nil, err
	}
	return dialectOf(rows[0][0])
}

func dialectOf(version string) (*dialect, error) {
	switch {
	case strings.Contains(version, "CockroachDB"):
		return cockroachDialect(), nil
	case strings.Contains(version, "-YB-"):
		return yugabyteDialect(), nil
	case strings.HasPrefix(version, "PostgreSQL "):
		return postgresDialect(), nil
	default:
		return nil, refuse("the database is %q, which is not supported; use PostgreSQL, YugabyteDB or CockroachDB", version)
	}
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", kv.ErrInvalidRequest, fmt.Sprintf(format, args...))
}

// checkServer refuses a database that cannot keep its promises.
func (db *DB) checkServer(ctx context.Context, c *pgconn.PgConn) error {
	rows, err := execText(ctx, c, db.dialect.serverQuery)
	if err != nil {
		return err
	}
	found := map[string]string{}
	for _, row := range rows {
		found[row[0]] = row[1]
	}
	// Not every build has it. It compresses values above 2 KB at a tenth of the
	// cost of the default.
	db.lz4 = found["lz4"] == "true"
	if db.opts.readOnly {
		delete(found, "in_recovery") // to look at a standby does no harm
	}
	return db.dialect.check(found, db.opts.maxConns+1)
}

// checkSession makes sure that our sessions are durable and read what is, whatever
// is set for the role, the database or by a proxy in between, and that the tables
// are.
func (db *DB) checkSession(c *conn) error {
	found := map[string]string{}
	err := c.simple(db.dialect.sessionQuery, func(cols [][]byte) { found[string(cols[0])] = string(cols[1]) })
	if err != nil {
		return err
	}
	if err := db.dialect.checkSession(found); err != nil {
		return fmt.Errorf("open database %s: schema %s: %w", db.where, db.opts.schema, err)
	}
	return nil
}
