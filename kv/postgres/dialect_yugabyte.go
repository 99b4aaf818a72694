package postgres

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// minYugabyte is the oldest supported series: the first one based on PostgreSQL 15.
const minYugabyte = 2025.1

// yugabyteDialect is the dialect of YugabyteDB. Its servers are PostgreSQL's query layer on
// top of distributed storage. So it has most of PostgreSQL's settings and all of its SQL.
// It differs in the cost of reading rows, and in the concurrency of transactions. DESIGN.md
// explains each setting.
func yugabyteDialect() *dialect {
	return &dialect{
		name: "YugabyteDB",
		serverQuery: `SELECT name, setting FROM pg_settings WHERE name IN
			('server_version', 'server_encoding', 'max_connections', 'superuser_reserved_connections')`,
		check: checkYugabyte,
		sessionQuery: `SELECT 'yb_read_from_followers', current_setting('yb_read_from_followers')
			UNION ALL SELECT 'yb_read_after_commit_visibility', current_setting('yb_read_after_commit_visibility')
			UNION ALL SELECT 'yb_disable_transactional_writes', current_setting('yb_disable_transactional_writes')
			UNION ALL SELECT 'yb_read_time', current_setting('yb_read_time')
			UNION ALL SELECT 'plan_cache_mode', current_setting('plan_cache_mode')`,
		checkSession: checkYugabyteSession,
		settings: map[string]string{
			// Reads go to the leaders of tablets and see all acknowledged writes, and
			// writes are transactions.
			"yb_read_from_followers":          "off",
			"yb_read_after_commit_visibility": "strict",
			"yb_disable_transactional_writes": "off",

			"plan_cache_mode":                 "force_generic_plan",
			"jit":                             "off",
			"enable_seqscan":                  "off",
			"enable_bitmapscan":               "off",
			"enable_hashjoin":                 "off",
			"enable_mergejoin":                "off",
			"max_parallel_workers_per_gather": "0",

			"statement_timeout":                   millis(statementLimit),
			"lock_timeout":                        millis(lockLimit),
			"idle_in_transaction_session_timeout": millis(idleLimit),
			"tcp_keepalives_idle":                 "6",
			"tcp_keepalives_interval":             "3",
			"tcp_keepalives_count":                "3",
			"client_min_messages":                 "warning",
			"bytea_output":                        "hex",
		},
		// The meaning of READ COMMITTED depends on a flag of the database's servers: with
		// it, as in PostgreSQL; without, a snapshot, and a transaction that waited for a
		// lock has to restart. Both are correct here.
		begin:     `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		beginRead: `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`,
		// It waits until no clock can be behind its snapshot (500 ms), so newer rows never
		// force it to restart, however much it reads.
		beginUndisturbed: `BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE`,
		beginSweep:       `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		table:            `0::int4`,
		lock:             `FOR UPDATE`,
		// lock_timeout does not apply to row locks.
		lockWait:  `SET LOCAL statement_timeout = ` + millis(lockLimit),
		noTimeout: `set_config('statement_timeout', '0', true)`,
		// pg_stat_activity shows the sessions of one server only; locks, and the
		// transactions that hold them, are cluster-wide. No transaction of a live server is
		// that old.
		evict: `SELECT yb_cancel_transaction((l.ybdetails->>'transactionid')::uuid) FROM pg_locks l
			WHERE l.relation = 'head'::regclass AND l.granted
				AND (l.waitend < clock_timestamp() - interval '5 s' OR l.waitend > clock_timestamp() + interval '1 s')`,
		// There are no statistics of dead rows.
		size: `SELECT coalesce(sum(pg_table_size(c.oid)), 0)::int8, coalesce(sum(pg_table_size(c.oid)), 0)::int8
			FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'`,
		forCheck: []string{`SET LOCAL statement_timeout = 0`, `SET LOCAL enable_seqscan = on`,
			`SET LOCAL enable_hashjoin = on`, `SET LOCAL enable_mergejoin = on`},
		ddl:      yugabyteDDL,
		stepwise: true,
		joins: &joins{
			inner: "JOIN", left: "LEFT JOIN",
			// One request for up to 1,024 keys, instead of one for each.
			hint: func(chains ...[]string) string {
				var b strings.Builder
				for _, c := range chains {
					order := c[0]
					for i := 1; i < len(c); i++ {
						order = "(" + order + " " + c[i] + ")"
					}
					b.WriteString(" Leading(" + order + ")")
					for i := 1; i < len(c); i++ {
						b.WriteString(" YbBatchedNL(" + strings.Join(c[:i+1], " ") + ")")
					}
				}
				return "/*+" + b.String() + " */ "
			},
			among: func(query string) string { return " = ANY(ARRAY(" + query + "))" },
		},
		again: func(err *pgconn.PgError) bool {
			// The last condition covers errors after another transaction, or a schema
			// change, has ended the statement's transaction.
			return has(err, codeSerialization, codeDeadlock, codeLockTimeout, codeCanceled, codeFailedTransaction) ||
				err.Code == codeInternal && contains(err.Message, "Restart read required", "schema version mismatch",
					"Catalog Version Mismatch", "catalog snapshot used for this transaction", "conflicts with")
		},
		passing: func(err *pgconn.PgError) bool {
			return has(err, "72000") || contains(err.Message, "Snapshot too old") ||
				err.Code == codeInternal && contains(err.Message, "Timed out", "Network error", "Service unavailable",
					"Try again", "not the leader", "Leader does not have a valid lease", "Not the leader")
		},
		waited: func(code string) bool { return code == codeCanceled || code == codeLockTimeout },
		// Its storage may answer late or never, under an unspecific code.
		unknown: func(code string) bool { return code != codeSerialization && code != codeDeadlock },
	}
}

func contains(message string, some ...string) bool {
	for _, s := range some {
		if strings.Contains(message, s) {
			return true
		}
	}
	return false
}

var (
	clause       = regexp.MustCompile(`\{\w+\}`)
	compositeKey = regexp.MustCompile(`PRIMARY KEY \((\w+), `)
	indexed      = regexp.MustCompile(`(CREATE INDEX \w+ ON \w+) \((\w+),`)
)

// yugabyteDDL stores rows in key order; the database's default is to hash the first column.
// Keyspaces are read in order, and a large one must be divisible. Tables with one row for
// each keyspace may be hashed.
func yugabyteDDL(text string) string {
	text = clause.ReplaceAllString(text, "")
	text = compositeKey.ReplaceAllString(text, "PRIMARY KEY ($1 ASC, ")
	return indexed.ReplaceAllString(text, "$1 ($2 ASC,")
}

// yugabyteVersion matches the result of version() and server_version:
// "15.12-YB-2025.2.0.0-b0".
var yugabyteVersion = regexp.MustCompile(`-YB-(\d+\.\d+)[.\d]*`)

func checkYugabyte(found map[string]string, need int) error {
	series := 0.0
	if m := yugabyteVersion.FindStringSubmatch(found["server_version"]); m != nil {
		series, _ = strconv.ParseFloat(m[1], 64)
	}
	if series < minYugabyte {
		return refuse("YugabyteDB %s is not supported; use version %.1f or later", found["server_version"], minYugabyte)
	}
	if err := checkEncoding(found); err != nil {
		return err
	}
	return checkConnections(found, need)
}

func checkYugabyteSession(found map[string]string) error {
	for _, s := range []struct{ name, want, why string }{
		{"yb_read_from_followers", "off", "reads would miss acknowledged writes"},
		{"yb_read_after_commit_visibility", "strict", "reads would miss acknowledged writes"},
		{"yb_disable_transactional_writes", "off", "commits would be applied in part"},
		{"yb_read_time", "0", "reads would be stale"},
		{"plan_cache_mode", "force_generic_plan", "a pooler mixes the sessions of its clients; " + sessionPooling},
	} {
		// yb_read_time may be shown with a unit.
		if value, _, _ := strings.Cut(found[s.name], " "); value != s.want {
			return refuse("%s is %q in our sessions instead of %s: %s; remove the override (ALTER ROLE or DATABASE … RESET %s)",
				s.name, found[s.name], s.want, s.why, s.name)
		}
	}
	return nil
}
