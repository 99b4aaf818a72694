package postgres

import (
	"strconv"
	"strings"
	"time"
)

// dialect is what databases that speak PostgreSQL's protocol do differently.
type dialect struct {
	name string
	// minVersion as server_version_num.
	minVersion int
	// notify: LISTEN and NOTIFY work; otherwise servers poll.
	notify bool
	// settings of every session.
	settings map[string]string

	begin, beginRead string
	// lock is the clause that holds a row against other writers.
	lock string
	// noTimeout is an expression that ends the statement timeout for the rest of
	// the transaction: see update.go.
	noTimeout string
	// async lets the transaction commit without waiting for the disk.
	async string
	// size selects the bytes on disk of all tables of the schema.
	size string
	// storage clauses of tables, by their name in migrations.
	storage map[string]string
	// again tells by an error's code that the transaction had no effect and should
	// be run again; unknown that its commit may have happened.
	again, unknown func(code string) bool
}

func (d *dialect) ddl(text string) string {
	for name, clause := range d.storage {
		text = strings.ReplaceAll(text, "{"+name+"}", clause)
	}
	return text
}

// How long a session may hold a keyspace without a word, for instance because
// its server is frozen; and how long others wait for it, which must be longer.
const (
	idleLimit = 4 * time.Second
	lockLimit = 6 * time.Second
)

// statementLimit bounds a single read. It must suffice for a list of
// everything.
const statementLimit = 60 * time.Second

// checkLimit bounds a check of the whole database.
const checkLimit = 24 * time.Hour

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func postgresDialect() *dialect {
	return &dialect{
		name:       "PostgreSQL",
		minVersion: 140000,
		notify:     true,
		settings: map[string]string{
			"synchronous_commit": "on",
			// One plan for each statement, made without looking at statistics as
			// far as one can have it.
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
			// A client whose machine is gone holds nothing for longer than 15 s.
			"tcp_keepalives_idle":     "6",
			"tcp_keepalives_interval": "3",
			"tcp_keepalives_count":    "3",
			"client_min_messages":     "warning",
			"bytea_output":            "hex",
		},
		begin:     `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		beginRead: `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`,
		lock:      `FOR NO KEY UPDATE`,
		noTimeout: `set_config('statement_timeout', '0', true)`,
		async:     `SET LOCAL synchronous_commit = off`,
		size: `SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8,
				coalesce(sum(pg_total_relation_size(c.oid) * greatest(0, least(1,
					1 - s.n_dead_tup::float8 / greatest(1, s.n_live_tup + s.n_dead_tup)))), 0)::int8
			FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'`,
		storage: map[string]string{
			// Every commit rewrites its keyspace's row: room for many versions on
			// the same page, so that they are pruned there and no index changes.
			"head": `WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
				autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000)`,
			"sweep": `WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)`,
			"lease": `WITH (fillfactor = 50)`,
			// Never updated; swept rows should soon become room for new ones.
			"log": `WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
				autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0.5,
				toast.autovacuum_vacuum_cost_delay = 0)`,
			"segment": `WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000)`,
			// Updates stay on their page and leave its indexes alone.
			"current": `WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)`,
		},
		again: func(code string) bool {
			switch code {
			case codeSerialization, codeDeadlock, codeLockTimeout:
				return true
			}
			return false
		},
		unknown: func(code string) bool { return code == "40003" || code == "08007" },
	}
}
