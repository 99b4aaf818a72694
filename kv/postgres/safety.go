package postgres

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// prepare detects the database's type, refuses an unsafe one, and upgrades the schema, on a
// separate connection.
func (db *DB) prepare(ctx context.Context) error {
	return db.retry(ctx, "open", func(wait context.Context) error {
		config := db.config
		if len(db.hosts.all) > 1 {
			if db.opts.oneWritable {
				if err := db.oneWritableHost(wait); err != nil {
					return err
				}
			}
			host, _, err := db.judgeHosts(wait)
			if err != nil {
				return err
			}
			config = db.hosts.all[host]
		}
		c, err := pgconn.ConnectConfig(wait, config)
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

// detect chooses the dialect by the server's version. Other databases with the same
// protocol are refused, because their guarantees are unknown.
func detect(ctx context.Context, c *pgconn.PgConn) (*dialect, error) {
	rows, err := execText(ctx, c, "SELECT version()")
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, noAnswer()
	}
	return dialectOf(rows[0][0])
}

// noAnswer is the error if the connection ended during the answer, which then has no row.
func noAnswer() error {
	return fmt.Errorf("read from the database: %w", io.ErrUnexpectedEOF)
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

// checkServer refuses a database that could lose acknowledged writes.
func (db *DB) checkServer(ctx context.Context, c *pgconn.PgConn) error {
	rows, err := execText(ctx, c, db.dialect.serverQuery)
	if err != nil {
		return err
	}
	found := map[string]string{}
	for _, row := range rows {
		found[row[0]] = row[1]
	}
	// Not every build supports it. It compresses values above 2 KB at a tenth of the
	// default's cost.
	db.lz4 = found["lz4"] == "true"
	if db.opts.readOnly {
		delete(found, "in_recovery") // inspecting a standby is harmless
	}
	return db.dialect.check(found, db.opts.maxConns+1)
}

// checkSession makes sure that our sessions are durable and read the present state,
// regardless of settings of the role, the database or a proxy, that the tables are durable,
// and that a session is ours alone.
func (db *DB) checkSession(ctx context.Context, c *conn) error {
	found := map[string]string{}
	err := c.simple(db.dialect.sessionQuery, func(cols [][]byte) { found[string(cols[0])] = string(cols[1]) })
	if err != nil {
		return err
	}
	if err := db.dialect.checkSession(found); err != nil {
		return fmt.Errorf("open database %s: schema %s: %w", db.where, db.opts.schema, err)
	}
	return db.checkPooling(ctx, c)
}

// checkPooling refuses a pooler that gives two connections the same session in turns: it
// would mix their settings, prepared statements and notifications.
func (db *DB) checkPooling(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, db.opts.timeout)
	defer cancel()
	other, err := db.pool.take(ctx)
	if err != nil {
		return err
	}
	defer db.pool.give(other)
	var pids [2]string
	for i, c := range []*conn{c, other} {
		err := c.within(ctx, db.opts.timeout, func() error {
			return c.simple("SELECT pg_backend_pid()", func(cols [][]byte) { pids[i] = string(cols[0]) })
		})
		if err != nil {
			return err
		}
	}
	if pids[0] == pids[1] {
		return fmt.Errorf("open database %s: %w", db.where, refuse("a pooler lets two connections use one session in turns; "+sessionPooling))
	}
	return nil
}

// sessionPooling is the remedy for poolers that do not keep sessions.
const sessionPooling = "let it pool whole sessions (in PgBouncer: pool_mode = session), or connect without it"
