package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// migrations[i] upgrades the schema from version i to i+1, in one transaction with the new
// version number. Released steps never change; add new ones. Differences of dialects are in
// the storage clauses ({head}, …) and in ddl. Where a step is not a transaction its
// statements are repeated: see schema_stepwise.go.
var migrations = []string{
	`
-- What never changes of a keyspace. origin is random: a keyspace of the same
-- name in another database is another keyspace.
CREATE TABLE keyspace (
	id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name   text COLLATE "C" NOT NULL UNIQUE,
	origin bytea NOT NULL
);

-- Where each keyspace stands. Writers of all servers hold its row from their
-- first read to their commit. (rev, sub) names the last commit, as in segment.
CREATE TABLE head (
	ks        integer PRIMARY KEY,
	rev       bigint  NOT NULL,
	sub       integer NOT NULL,
	compacted bigint  NOT NULL, -- compaction revision
	next_id   bigint  NOT NULL, -- of log
	fence     integer NOT NULL, -- changed to make sure of an earlier commit
	token     bytea   NOT NULL  -- of the last commit
) {head};

-- Every change, appended in order; ids rise with revisions and are never used
-- again. version 0 is a deletion. prev_id is the change of the same key before this
-- one (which may have been swept), 0 if there was none; prev_rev its revision, 0
-- if the key did not exist.
CREATE TABLE log (
	ks         integer NOT NULL,
	id         bigint  NOT NULL,
	rev        bigint  NOT NULL,
	create_rev bigint  NOT NULL,
	version    bigint  NOT NULL,
	lease      bigint  NOT NULL,
	prev_id    bigint  NOT NULL,
	prev_rev   bigint  NOT NULL,
	key        bytea   NOT NULL,
	value      bytea   NOT NULL,
	PRIMARY KEY (ks, id)
) {log};

-- One row per commit: the log's ids [id, id+n) are its changes, rev is the last
-- revision among them. A commit that made no revision counts sub up. token is
-- random: by it a server whose COMMIT was not answered finds out.
CREATE TABLE segment (
	ks    integer NOT NULL,
	rev   bigint  NOT NULL,
	sub   integer NOT NULL,
	n     integer NOT NULL,
	id    bigint  NOT NULL,
	token bytea   NOT NULL,
	PRIMARY KEY (ks, rev, sub)
) {segment};

-- The newest change of each key, deletions included until they are swept.
CREATE TABLE current (
	ks         integer NOT NULL,
	id         bigint  NOT NULL,
	mod        bigint  NOT NULL,
	create_rev bigint  NOT NULL,
	version    bigint  NOT NULL,
	lease      bigint  NOT NULL,
	key        bytea   NOT NULL,
	PRIMARY KEY (ks, key)
) {current};
CREATE INDEX current_lease ON current (ks, lease, key) WHERE lease <> 0;

CREATE TABLE lease (
	ks   integer NOT NULL,
	id   bigint  NOT NULL,
	ttl  bigint  NOT NULL, -- seconds
	beat bigint  NOT NULL, -- renewals
	PRIMARY KEY (ks, id)
) {lease};

-- How far each keyspace is swept: a row of its own, so that sweeping and
-- writing do not wait for each other.
CREATE TABLE sweep (
	ks    integer PRIMARY KEY,
	swept bigint  NOT NULL, -- compaction revision that is finished
	id    bigint  NOT NULL  -- of the log, where it goes on
) {sweep};
`,
	`
-- Counts how often the keyspace was split or merged. It is read with every head,
-- so that no server goes on with partitions that are not those any more.
ALTER TABLE head ADD COLUMN layout integer NOT NULL DEFAULT 0;
`,
	`
-- The highest revision that a server knows and this database lacks, 0 if there is none. It
-- is read with every head, so that no server goes on.
ALTER TABLE head ADD COLUMN lost bigint NOT NULL DEFAULT 0;

-- The origins that recoveries have replaced: a database that was recovered is the successor
-- of those that have one of them.
CREATE TABLE former (
	ks     integer NOT NULL,
	origin bytea   NOT NULL,
	PRIMARY KEY (ks, origin)
);

-- One row: which database this is, by system, timeline and tables. After a failover or a
-- restore it is another one. Then nobody is served (settled is false) until the servers
-- that used it before have compared it with what they know.
CREATE TABLE instance (
	one      boolean PRIMARY KEY,
	number   bigint  NOT NULL, -- increases with every other database
	identity text    NOT NULL,
	since    timestamp with time zone NOT NULL,
	settled  boolean NOT NULL
);
INSERT INTO instance (one, number, identity, since, settled) VALUES (true, 0, '', now(), true) ON CONFLICT (one) DO NOTHING;

-- Servers that use this database: when each was last seen, and the number of the instance
-- that it has compared with what it knows.
CREATE TABLE server (
	id       text   PRIMARY KEY,
	seen     timestamp with time zone NOT NULL,
	instance bigint NOT NULL
);
`,
	`
-- The keyspaces that have etcd's NOSPACE alarm (kv.Alarms).
CREATE TABLE alarm (
	ks integer PRIMARY KEY
);
`,
	`
-- The dropped keyspaces. They have no row in keyspace, so nothing finds them. head.layout is
-- -1 there: it is read with every head, so that no server goes on. Purge removes the other
-- rows, and later those of head and of this table.
CREATE TABLE dropped (
	ks     integer PRIMARY KEY,
	origin bytea   NOT NULL,
	since  timestamp with time zone NOT NULL,
	stage  integer NOT NULL, -- which table Purge removes rows of
	place  text    NOT NULL  -- the key of the first one that is left, '' before
);

-- All names in order: in YugabyteDB the unique index on them is hashed.
CREATE INDEX keyspace_names ON keyspace (name, id);
`,
	`
-- The usage of the keyspace (kv.Usage) after the commit that reached usage_rev. If that is not
-- rev, the last commit did not count: it was made by an earlier version, or without limits.
ALTER TABLE head ADD COLUMN usage_rev bigint NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN usage_keys bigint NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN usage_bytes bigint NOT NULL DEFAULT 0;
`,
	`
-- Purge finds the next keyspace with rows, and those that may be forgotten, without a look at all that were
-- dropped within a day.
CREATE INDEX dropped_stage ON dropped (stage, ks);
CREATE INDEX dropped_since ON dropped (since, ks);
`,
}

// Timeouts of a migration, including the wait for other servers that migrate. Where each
// table is created in a separate step on several nodes, it is slow.
const (
	migrateTimeout         = 30 * time.Second
	stepwiseMigrateTimeout = 5 * time.Minute
)

// migrate upgrades the schema. Any number of servers may do so concurrently: the second one
// to create an object waits for the first to commit, fails because the name exists by then,
// and checks again.
func (db *DB) migrate(ctx context.Context, c *pgconn.PgConn) error {
	timeout := migrateTimeout
	if db.dialect.stepwise {
		timeout = stepwiseMigrateTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := db.migrateOnce(ctx, c)
		if err == nil || !racedDDL(err) && !db.dialect.contended(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		case <-db.clock.After(20 * time.Millisecond):
		}
	}
}

func (db *DB) migrateOnce(ctx context.Context, c *pgconn.PgConn) (err error) {
	schema := quoteIdentifier(db.opts.schema)
	version, made, err := db.schemaVersion(ctx, c, "")
	if err != nil {
		return err
	}
	ours := len(migrations)
	if version > ours {
		return db.newerSchema(version)
	}
	if version == ours {
		return nil
	}
	if db.dialect.stepwise {
		return db.migrateStepwise(ctx, c, version)
	}
	if _, err := execText(ctx, c, "BEGIN"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, _ = execText(ctx, c, "ROLLBACK")
		}
	}()
	if !made {
		if err := db.makeSchema(ctx, c); err != nil {
			return err
		}
		if _, err := execText(ctx, c, "CREATE TABLE "+schema+".meta (version integer NOT NULL); INSERT INTO "+schema+".meta VALUES (0)"); err != nil {
			return err
		}
	}
	// Lock the row against other servers that upgrade.
	if version, _, err = db.schemaVersion(ctx, c, " FOR UPDATE"); err != nil {
		return err
	}
	if _, err := execText(ctx, c, "SET LOCAL search_path = "+schema); err != nil {
		return err
	}
	for v := version; v < ours; v++ {
		if _, err := execText(ctx, c, db.dialect.ddl(migrations[v])); err != nil {
			return fmt.Errorf("migrate schema %s from version %d to %d (nothing was changed): %w", schema, v, v+1, err)
		}
	}
	if _, err := execText(ctx, c, "UPDATE meta SET version = "+strconv.Itoa(ours)); err != nil {
		return err
	}
	_, err = execText(ctx, c, "COMMIT")
	return err
}

// makeSchema creates the schema if it does not exist. CREATE … IF NOT EXISTS would require
// the privilege to create it even if an administrator has created it.
func (db *DB) makeSchema(ctx context.Context, c *pgconn.PgConn) error {
	there, err := execText(ctx, c, "SELECT 1 FROM pg_namespace WHERE nspname = "+quoteLiteral(db.opts.schema))
	if err == nil && len(there) == 0 {
		_, err = execText(ctx, c, "CREATE SCHEMA "+quoteIdentifier(db.opts.schema))
	}
	return err
}

// schemaVersion reads the version, 0 if there is no schema yet.
func (db *DB) schemaVersion(ctx context.Context, c *pgconn.PgConn, lock string) (version int, made bool, err error) {
	rows, err := execText(ctx, c, "SELECT version FROM "+quoteIdentifier(db.opts.schema)+".meta"+lock)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == codeUndefinedTable || pgErr.Code == codeUndefinedSchema) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if len(rows) == 0 && db.dialect.stepwise {
		return 0, true, nil // another server is creating it
	}
	if len(rows) != 1 {
		return 0, false, fmt.Errorf("schema %s: table meta has %d rows instead of one: %w; it belongs to another program, choose another schema",
			db.opts.schema, len(rows), kv.ErrInvalidRequest)
	}
	version, err = strconv.Atoi(rows[0][0])
	return version, true, err
}

// racedDDL reports whether another server has created the same object first.
func racedDDL(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch pgErr.Code {
	case "23505", "42P06", "42P07", "42710", "40001", "40P01":
		return true
	}
	return pgErr.Code == "XX000" && strings.Contains(pgErr.Message, "concurrently")
}

func quoteIdentifier(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoteLiteral(s string) string {
	return ` E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + `'`
}

// execText runs SQL outside the prepared statements and returns the rows of the last
// statement as text.
func execText(ctx context.Context, c *pgconn.PgConn, sql string) (rows [][]string, err error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, res := range results {
		rows = nil
		for _, cols := range res.Rows {
			row := make([]string, len(cols))
			for i, col := range cols {
				row[i] = string(col)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}
