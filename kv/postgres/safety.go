package postgres

import (
	"context"
	"fmt"
	"strconv"
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

// detect chooses the dialect by what the server says of itself.
func detect(ctx context.Context, c *pgconn.PgConn) (*dialect, error) {
	rows, err := execText(ctx, c, "SELECT version()")
	if err != nil {
		return nil, err
	}
	version := rows[0][0]
	if strings.Contains(version, "CockroachDB") || strings.Contains(version, "-YB-") {
		return nil, fmt.Errorf("%w: the database is %q, which is not supported yet; use PostgreSQL", kv.ErrInvalidRequest, version)
	}
	return postgresDialect(), nil
}

// unsafe are settings under which a database forgets what it acknowledged.
var unsafeSettings = []struct{ name, value, why, remedy string }{
	{"fsync", "off", "a crash of its machine loses acknowledged writes and may damage it", "set fsync = on in postgresql.conf"},
	{"full_page_writes", "off", "a crash of its machine may damage it", "set full_page_writes = on in postgresql.conf"},
}

// checkServer refuses a database that cannot keep its promises.
func (db *DB) checkServer(ctx context.Context, c *pgconn.PgConn) error {
	rows, err := execText(ctx, c, `SELECT name, setting FROM pg_settings WHERE name IN
		('server_version_num', 'server_version', 'fsync', 'full_page_writes', 'server_encoding',
		 'max_connections', 'superuser_reserved_connections')
		UNION ALL SELECT 'lz4', ('lz4' = ANY(enumvals))::text FROM pg_settings WHERE name = 'default_toast_compression'
		UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text`)
	if err != nil {
		return err
	}
	setting := map[string]string{}
	for _, row := range rows {
		setting[row[0]] = row[1]
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", kv.ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	if n, _ := strconv.Atoi(setting["server_version_num"]); n < db.dialect.minVersion {
		return refuse("it is %s %s; use version %d or later", db.dialect.name, setting["server_version"], db.dialect.minVersion/10000)
	}
	// Not every build has it. It compresses values above 2 KB at a tenth of the
	// cost of the default.
	db.lz4 = setting["lz4"] == "true"
	if setting["in_recovery"] == "true" && !db.opts.readOnly {
		return refuse("it is a standby (in recovery), which takes no writes; point at the primary, or promote it")
	}
	for _, s := range unsafeSettings {
		if setting[s.name] == s.value {
			return refuse("its setting %s is %s: %s; %s", s.name, s.value, s.why, s.remedy)
		}
	}
	if setting["server_encoding"] != "UTF8" {
		return refuse("its encoding is %s; make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", setting["server_encoding"])
	}
	allowed, _ := strconv.Atoi(setting["max_connections"])
	reserved, _ := strconv.Atoi(setting["superuser_reserved_connections"])
	if need := db.opts.maxConns + 1; need > allowed-reserved {
		return refuse("this server may use %d connections and the database allows %d to all; lower pool_max_conns, or raise max_connections",
			need, allowed-reserved)
	}
	return nil
}

// checkSession makes sure that our sessions are durable, whatever is set for
// the role, the database or by a proxy in between, and that the tables are.
func (db *DB) checkSession(c *conn) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("open database %s: %w: %s", db.where, kv.ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	settings := map[string]string{}
	err := c.simple("SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'plan_cache_mode', 'search_path')",
		func(cols [][]byte) { settings[string(cols[0])] = string(cols[1]) })
	if err != nil {
		return err
	}
	if settings["synchronous_commit"] != "on" {
		return refuse("synchronous_commit is %q in our sessions though we set it to on: a crash would lose acknowledged writes; remove what sets it (a proxy?)",
			settings["synchronous_commit"])
	}
	if settings["plan_cache_mode"] != "force_generic_plan" {
		return refuse("sessions do not keep our settings; connect without a proxy, or through one that pools whole sessions")
	}
	var unlogged []string
	err = c.simple("SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND relpersistence <> 'p'",
		func(cols [][]byte) { unlogged = append(unlogged, string(cols[0])) })
	if err != nil {
		return err
	}
	if len(unlogged) > 0 {
		return refuse("tables %s of schema %s are not logged: a crash empties them; ALTER TABLE … SET LOGGED", strings.Join(unlogged, ", "), db.opts.schema)
	}
	return nil
}
