package postgres

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// minPostgres is the oldest supported version, as server_version_num.
const minPostgres = 140000

func postgresDialect() *dialect {
	return &dialect{
		name: "PostgreSQL",
		serverQuery: `SELECT name, setting FROM pg_settings WHERE name IN
			('server_version_num', 'server_version', 'fsync', 'full_page_writes', 'server_encoding',
			 'max_connections', 'superuser_reserved_connections')
			UNION ALL SELECT 'lz4', ('lz4' = ANY(enumvals))::text FROM pg_settings WHERE name = 'default_toast_compression'
			UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text`,
		check: checkPostgres,
		sessionQuery: `SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'plan_cache_mode')
			UNION ALL SELECT 'unlogged', string_agg(relname, ', ') FROM pg_class
				WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND relpersistence <> 'p'`,
		checkSession: checkPostgresSession,
		notify:       true,
		optimistic:   true,
		settings: map[string]string{
			"synchronous_commit": "on",
			// One plan for each statement, as independent of statistics as possible.
			"plan_cache_mode":                 "force_generic_plan",
			"jit":                             "off",
			"enable_seqscan":                  "off",
			"enable_bitmapscan":               "off",
			"enable_hashjoin":                 "off",
			"enable_mergejoin":                "off",
			"enable_memoize":                  "off",
			"enable_sort":                     "off",
			"max_parallel_workers_per_gather": "0",

			"statement_timeout":                   millis(statementLimit),
			"lock_timeout":                        millis(lockLimit),
			"idle_in_transaction_session_timeout": millis(idleLimit),
			// The server detects a dead client machine within 15 s, and releases its locks.
			"tcp_keepalives_idle":     "6",
			"tcp_keepalives_interval": "3",
			"tcp_keepalives_count":    "3",
			"client_min_messages":     "warning",
			"bytea_output":            "hex",
		},
		begin:            `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		beginRead:        `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`,
		beginUndisturbed: `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`,
		beginSweep:       `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		table:            `h.tableoid`,
		instance: `concat((SELECT system_identifier FROM pg_control_system()), ' ',
			substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), ' ', to_regclass('head')::oid)`,
		lock:      `FOR NO KEY UPDATE`,
		noTimeout: `set_config('statement_timeout', '0', true)`,
		async:     `SET LOCAL synchronous_commit = off`,
		// Ends our sessions that lock a keyspace in the middle of sending their changes,
		// for longer than any live server takes: before version 17 the database has no
		// timeout for that. If its clock was set back meanwhile, the time is not known.
		evict: `SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
			WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
				AND a.wait_event = 'ClientRead' AND a.state <> 'idle'
				AND (a.state_change < clock_timestamp() - interval '5 s' AND a.xact_start < clock_timestamp() - interval '5 s'
					OR a.state_change > clock_timestamp() + interval '1 s')
				AND EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'head'::regclass)`,
		standbyWaits: `SELECT 1 FROM pg_stat_activity a WHERE a.datname = current_database() AND a.wait_event = 'SyncRep'
			AND EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'head'::regclass) LIMIT 1`,
		size: `SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8,
				coalesce(sum(pg_total_relation_size(c.oid) * greatest(0, least(1,
					1 - s.n_dead_tup::float8 / greatest(1, s.n_live_tup + s.n_dead_tup)))), 0)::int8
			FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'`,
		forCheck: []string{`SET LOCAL statement_timeout = 0`, `SET LOCAL enable_seqscan = on`,
			`SET LOCAL enable_hashjoin = on`, `SET LOCAL enable_mergejoin = on`, `SET LOCAL enable_sort = on`},
		ddl: func(text string) string {
			for name, clause := range postgresStorage {
				text = strings.ReplaceAll(text, "{"+name+"}", clause)
			}
			return text
		},
		again: func(err *pgconn.PgError) bool {
			return has(err, codeSerialization, codeDeadlock, codeLockTimeout)
		},
		passing: func(*pgconn.PgError) bool { return false },
		waited:  func(code string) bool { return code == codeLockTimeout },
		unknown: func(code string) bool { return code == codeUnknown || code == "08007" },
	}
}

// postgresStorage contains the storage clauses of tables, by their name in migrations.
var postgresStorage = map[string]string{
	// Every commit rewrites its keyspace's row: leave room for many versions on the same
	// page, so that they are pruned there and no index changes.
	"head": `WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
		autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000)`,
	"sweep": `WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)`,
	"lease": `WITH (fillfactor = 50)`,
	// Never updated; the space of swept rows should soon be reusable.
	"log": `WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
		autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0.5,
		toast.autovacuum_vacuum_cost_delay = 0)`,
	"segment": `WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000)`,
	// Updates stay on their page and do not change its indexes.
	"current": `WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)`,
}

// checkPostgres refuses a PostgreSQL server that could lose acknowledged writes.
func checkPostgres(found map[string]string, need int) error {
	if n, _ := strconv.Atoi(found["server_version_num"]); n < minPostgres {
		return refuse("PostgreSQL %s is not supported; use version %d or later", found["server_version"], minPostgres/10000)
	}
	if found["in_recovery"] == "true" {
		return refuse("it is a standby (in recovery) and read-only; use the URL of the primary, or promote it")
	}
	for _, s := range []struct{ name, why, remedy string }{
		{"fsync", "a crash of its machine loses acknowledged writes and may damage the database", "set fsync = on in postgresql.conf"},
		{"full_page_writes", "a crash of its machine may damage the database", "set full_page_writes = on in postgresql.conf"},
	} {
		if found[s.name] == "off" {
			return refuse("its setting %s is off: %s; %s", s.name, s.why, s.remedy)
		}
	}
	if err := checkEncoding(found); err != nil {
		return err
	}
	return checkConnections(found, need)
}

func checkEncoding(found map[string]string) error {
	if found["server_encoding"] != "UTF8" {
		return refuse("its encoding is %s; create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", found["server_encoding"])
	}
	return nil
}

func checkConnections(found map[string]string, need int) error {
	allowed, _ := strconv.Atoi(found["max_connections"])
	reserved, _ := strconv.Atoi(found["superuser_reserved_connections"])
	if need > allowed-reserved {
		return refuse("this server may use %d connections, but the database allows only %d; decrease pool_max_conns, or increase max_connections",
			need, allowed-reserved)
	}
	return nil
}

func checkPostgresSession(found map[string]string) error {
	if found["synchronous_commit"] != "on" {
		return refuse("synchronous_commit is %q in our sessions although we set it to on: a crash would lose acknowledged writes; remove the override (a proxy?)",
			found["synchronous_commit"])
	}
	if found["plan_cache_mode"] != "force_generic_plan" {
		return refuse("sessions do not keep our settings, because a pooler mixes the sessions of its clients; " + sessionPooling)
	}
	if found["unlogged"] != "" {
		return refuse("tables %s are not logged: a crash empties them; run ALTER TABLE … SET LOGGED", found["unlogged"])
	}
	return nil
}
