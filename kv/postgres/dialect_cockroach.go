package postgres

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// minCockroach is the oldest supported series.
const minCockroach = 24.3

// cockroachDialect is the dialect of CockroachDB, which has PostgreSQL's protocol and most
// of its SQL, but a different implementation.
func cockroachDialect() *dialect {
	return &dialect{
		name: "CockroachDB",
		serverQuery: `SELECT 'version', version()
			UNION ALL SELECT 'default_transaction_read_only', current_setting('default_transaction_read_only')`,
		check: checkCockroach,
		sessionQuery: `SELECT 'default_transaction_use_follower_reads', current_setting('default_transaction_use_follower_reads')
			UNION ALL SELECT 'default_transaction_isolation', current_setting('default_transaction_isolation')
			UNION ALL SELECT 'plan_cache_mode', current_setting('plan_cache_mode')`,
		checkSession: checkCockroachSession,
		settings: map[string]string{
			"default_transaction_use_follower_reads": "off",
			// For statements outside explicit transactions.
			"default_transaction_isolation": "serializable",
			// Plans are made for the given keys, so lists of keys become range reads,
			// regardless of statistics.
			"plan_cache_mode": "force_custom_plan",
			// Up to this size of an answer, the database can restart a read automatically
			// because of clock skew.
			"results_buffer_size": "16777216",

			"statement_timeout": millis(statementLimit),
			"lock_timeout":      millis(lockLimit),
			// Statements are executed as they arrive, so this timeout applies between any
			// two of them, and evict is not needed.
			"idle_in_transaction_session_timeout": millis(idleLimit),
			"client_min_messages":                 "warning",
			"bytea_output":                        "hex",
		},
		// Locks of a serializable transaction can be lost when a range moves: then it
		// fails, without an inconsistency. Those of READ COMMITTED are durable, at the cost
		// of another consensus round.
		begin:            `BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE`,
		beginRead:        `BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY`,
		beginUndisturbed: `BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY`,
		// A sweep reads the head, which changes all the time: at SERIALIZABLE it would
		// never commit beside writers.
		beginSweep: `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`,
		table:      `0::int4`,
		lock:       `FOR UPDATE`,
		noTimeout:  `''`,
		// From the planner's statistics: the size of existing rows, before compression and
		// replication.
		size: `SELECT coalesce(sum(s.bytes), 0)::int8, coalesce(sum(s.bytes), 0)::int8 FROM (
				(SELECT DISTINCT ON (column_names) row_count * avg_size AS bytes FROM [SHOW STATISTICS FOR TABLE log]
					WHERE array_length(column_names, 1) = 1 ORDER BY column_names, created DESC)
				UNION ALL
				(SELECT DISTINCT ON (column_names) row_count * avg_size AS bytes FROM [SHOW STATISTICS FOR TABLE current]
					WHERE array_length(column_names, 1) = 1 ORDER BY column_names, created DESC)) s`,
		forCheck: []string{`SET LOCAL statement_timeout = 0`},
		ddl:      cockroachDDL,
		stepwise: true,
		// By default replaced rows are kept for hours, and every commit replaces the head.
		// A list, and a check, must be complete within this time.
		tune: []string{
			`ALTER TABLE head CONFIGURE ZONE USING gc.ttlseconds = 1800`,
			`ALTER TABLE log CONFIGURE ZONE USING gc.ttlseconds = 1800`,
			`ALTER TABLE current CONFIGURE ZONE USING gc.ttlseconds = 1800`,
			`ALTER TABLE segment CONFIGURE ZONE USING gc.ttlseconds = 1800`,
			`ALTER TABLE lease CONFIGURE ZONE USING gc.ttlseconds = 1800`,
			`ALTER TABLE sweep CONFIGURE ZONE USING gc.ttlseconds = 1800`,
		},
		joins: &joins{
			inner: "INNER LOOKUP JOIN", left: "LEFT LOOKUP JOIN",
			hint:  func(...[]string) string { return "" },
			among: func(query string) string { return " IN (" + query + ")" },
			// INSERT … ON CONFLICT would choose a join by statistics. No transaction can
			// remove a row that a serializable transaction has read.
			setCurrent: `UPDATE current AS c SET id = u.id, mod = u.mod, create_rev = u.create_rev, version = u.version, lease = u.lease
				FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::bytea[])
					u(id, mod, create_rev, version, lease, key)
				WHERE c.ks = $1 AND c.key = u.key AND c.key = ANY($7::bytea[])`,
		},
		again: func(err *pgconn.PgError) bool {
			// 40003 is from a statement before COMMIT: nothing of it remains. A duplicate
			// key can be the error of a transaction that has lost its lock to a faster one.
			return has(err, codeSerialization, codeLockTimeout, codeUnknown, codeDeadlock, codeDuplicate)
		},
		// Ranges or replicas are unavailable.
		passing: func(err *pgconn.PgError) bool { return has(err, "58C00", "58C01") },
		waited:  func(code string) bool { return code == codeLockTimeout },
		unknown: func(code string) bool { return code != codeSerialization && code != codeDeadlock },
	}
}

var (
	integerType = regexp.MustCompile(`\binteger\b`)
	collation   = regexp.MustCompile(` COLLATE "C"`)
)

// cockroachDDL: integers have eight bytes by default, and text is compared bytewise. Keys
// are stored in order.
func cockroachDDL(text string) string {
	text = clause.ReplaceAllString(text, "")
	text = integerType.ReplaceAllString(text, "int4")
	return collation.ReplaceAllString(text, "")
}

// cockroachVersion matches the result of version(): "CockroachDB CCL v25.2.1 (…)".
var cockroachVersion = regexp.MustCompile(`CockroachDB \w+ v(\d+\.\d+)`)

func checkCockroach(found map[string]string, _ int) error {
	series := 0.0
	if m := cockroachVersion.FindStringSubmatch(found["version"]); m != nil {
		series, _ = strconv.ParseFloat(m[1], 64)
	}
	if series < minCockroach {
		version, _, _ := strings.Cut(found["version"], " (")
		return refuse("version %s is not supported; use version %.1f or later", version, minCockroach)
	}
	if found["default_transaction_read_only"] == "on" {
		return refuse("its sessions are read-only; run ALTER ROLE … RESET default_transaction_read_only, or use the URL of the primary cluster")
	}
	return nil
}

func checkCockroachSession(found map[string]string) error {
	for _, s := range []struct{ name, want, why string }{
		{"default_transaction_use_follower_reads", "off", "reads would miss acknowledged writes"},
		{"default_transaction_isolation", "serializable", "single statements would not see one state"},
		{"plan_cache_mode", "force_custom_plan", "a pooler mixes the sessions of its clients; " + sessionPooling},
	} {
		if found[s.name] != s.want {
			return refuse("%s is %q in our sessions instead of %s: %s; remove what sets it (ALTER ROLE … RESET %s)",
				s.name, found[s.name], s.want, s.why, s.name)
		}
	}
	return nil
}
