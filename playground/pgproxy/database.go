package pgproxy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Database is the database that the proxy emulates over PostgreSQL, according to its documentation:
// its version, settings and statements, and the features that it lacks. SQL that only this database
// understands is translated. The proxy cannot emulate its query plans, its clock skew and the
// location of its data.
type Database string

const (
	PostgreSQL Database = ""
	// Yugabyte is YugabyteDB with yb_enable_read_committed_isolation.
	Yugabyte Database = "yugabyte"
	// YugabyteSnapshot is YugabyteDB without that setting: READ COMMITTED is a snapshot, so a
	// transaction that waits for a row and finds it changed must be retried.
	YugabyteSnapshot Database = "yugabyte-snapshot"
	Cockroach        Database = "cockroach"
)

// Databases returns all databases that can be emulated.
func Databases() []Database { return []Database{Yugabyte, YugabyteSnapshot, Cockroach} }

// emulation describes how a database differs from PostgreSQL.
type emulation struct {
	// setting returns the name to use for a setting, in the startup message and in SET.
	setting func(name string) string
	// refused statements are found by their text outside of quotes and comments.
	refused []refusal
	// translated replaces SQL that PostgreSQL does not know.
	translated []translation
	// sequenceCache is the default of how many sequence numbers a session reserves.
	sequenceCache int
	// exactTypes rejects a prepared statement with more parameter types than parameters.
	exactTypes bool
	// ddlAlone rejects DDL inside transactions.
	ddlAlone bool
}

type refusal struct {
	pattern *regexp.Regexp
	code    string
	what    string
	unless  *regexp.Regexp // unless the matching text matches this
}

type translation struct {
	pattern *regexp.Regexp
	by      string
}

// SQLSTATE codes of the rejections.
const (
	undefinedColumn   = "42703"
	undefinedFunction = "42883"
	activeTransaction = "25001"
	protocolViolation = "08P01"
)

// defining matches DDL statements for tables and the like.
var defining = regexp.MustCompile(`(?i)^\s*(CREATE|ALTER|DROP)\s+(TABLE|INDEX|SCHEMA|SEQUENCE)\b`)

func refuse(code, what, pattern string) refusal {
	return refusal{pattern: regexp.MustCompile(`(?i)` + pattern), code: code, what: what}
}

// returning refuses matching statements without RETURNING.
func returning(code, what, pattern string) refusal {
	r := refuse(code, what, pattern)
	r.unless = regexp.MustCompile(`(?i)\bRETURNING\b`)
	return r
}

func translate(pattern, by string) translation {
	return translation{regexp.MustCompile(`(?i)` + pattern), by}
}

// emulate returns the emulation of a database, or nil for PostgreSQL.
func emulate(d Database) *emulation {
	common := []refusal{
		refuse(undefinedColumn, "system columns", `\b(ctid|xmin|xmax|cmin|cmax)\b`),
		refuse(featureNotSupported, "LISTEN and NOTIFY", `^\s*(LISTEN|UNLISTEN|NOTIFY)\b|\bpg_notify\b`),
		refuse(featureNotSupported, "advisory locks", `\bpg_(try_)?advisory`),
		refuse(featureNotSupported, "LOCK TABLE", `^\s*LOCK\s+TABLE\b`),
		refuse(featureNotSupported, "storage parameters", `\bWITH\s*\(\s*(fillfactor|autovacuum|toast)`),
		refuse(featureNotSupported, "unlogged tables", `\bUNLOGGED\b`),
	}
	switch d {
	case Yugabyte, YugabyteSnapshot:
		e := &emulation{
			setting:       renamed("", "yb_read_from_followers", "yb_read_after_commit_visibility", "yb_disable_transactional_writes"),
			refused:       common,
			sequenceCache: 100,
			ddlAlone:      true,
			translated: []translation{
				translate(`\bversion\(\)`, `'PostgreSQL 15.12-YB-2025.2.0.0-b0 on x86_64-pc-linux-gnu, emulated'::text`),
				translate(`\bFROM pg_settings\b`, `FROM (SELECT name, CASE name WHEN 'server_version' THEN '15.12-YB-2025.2.0.0-b0' ELSE setting END AS setting
					FROM pg_catalog.pg_settings) pg_settings`),
				translate(`\bcurrent_setting\('yb_read_time'\)`, `'0'`),
				translate(`\bcurrent_setting\('(yb_\w+)'\)`, `coalesce(current_setting('emulated.$1', true), 'off')`),
				// Range-sharded keys and their split points.
				translate(`\((\w+) ASC,`, `($1,`),
				translate(`\s+SPLIT\s+(INTO\s+\d+\s+TABLETS|AT\s+VALUES\s*\(.*\))\s*$`, ``),
				// YugabyteDB's locks have the transaction's id and the time since which they are held.
				translate(`\bFROM pg_locks\b`, `FROM (SELECT l.relation, l.granted, a.state_change AS waitend,
					jsonb_build_object('transactionid', a.pid) AS ybdetails
					FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid) WHERE a.wait_event = 'ClientRead')`),
				translate(`\byb_cancel_transaction\((.*?)::uuid\)`, `pg_terminate_backend($1::int4)`),
			},
		}
		if d == YugabyteSnapshot {
			e.translated = append(e.translated, translate(`\bISOLATION LEVEL READ COMMITTED\b`, `ISOLATION LEVEL REPEATABLE READ`))
		}
		return e
	case Cockroach:
		return &emulation{
			setting: renamed("user database application_name client_encoding datestyle timezone extra_float_digits options search_path "+
				"statement_timeout lock_timeout idle_in_transaction_session_timeout client_min_messages bytea_output plan_cache_mode "+
				"default_transaction_isolation default_transaction_read_only synchronous_commit enable_seqscan",
				"default_transaction_use_follower_reads", "results_buffer_size"),
			refused: append(common,
				refuse(undefinedFunction, "functions of PostgreSQL's processes and files",
					`\b(pg_terminate_backend|pg_total_relation_size|pg_relation_size|pg_table_size|pg_current_wal_lsn)\b`),
				refuse(featureNotSupported, "settings of PostgreSQL's planner",
					`^\s*SET\s+(LOCAL\s+|SESSION\s+)?(enable_(hashjoin|mergejoin|sort|bitmapscan|memoize)|jit)\b`),
				refuse(featureNotSupported, "recursive queries that refer to an outer query", `\(\s*WITH\s+RECURSIVE\b`),
				refuse(featureNotSupported, "DEFERRABLE", `\bDEFERRABLE\b`),
				returning(featureNotSupported, "changes in WITH that return nothing", `\bAS\s*\(\s*(INSERT|UPDATE|DELETE)\b([^()]|\([^()]*\))*\)`),
				refuse(featureNotSupported, "statistics of tables", `\bpg_stat_all_tables\b`),
			),
			exactTypes: true,
			ddlAlone:   true,
			translated: []translation{
				translate(`\bversion\(\)`, `'CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, emulated)'::text`),
				translate(`\bcurrent_setting\('(default_transaction_use_follower_reads|results_buffer_size)'\)`,
					`coalesce(current_setting('emulated.$1', true), 'off')`),
				translate(`\b(INNER|LEFT) LOOKUP JOIN\b`, `$1 JOIN`),
				translate(`\s+SPLIT\s+AT\s+VALUES\s*\(.*\)\s*$`, ``),
				translate(`^\s*ALTER TABLE \w+ (CONFIGURE ZONE USING .*|SPLIT AT .*)$`, `SELECT`),
				translate(`\[SHOW STATISTICS FOR TABLE (\w+)\]`,
					`(SELECT ARRAY[attname::text] AS column_names, 0::int8 AS row_count, 8::int8 AS avg_size, now() AS created
						FROM pg_attribute WHERE attrelid = '$1'::regclass AND attnum > 0) statistics`),
			},
		}
	}
	return nil
}

// renamed returns a function that maps the names of settings. Settings of the emulated database get
// the prefix "emulated.". If known is not empty, all settings that it does not list get a name that
// PostgreSQL rejects.
func renamed(known string, own ...string) func(string) string {
	return func(name string) string {
		for _, o := range own {
			if name == o {
				return "emulated." + name
			}
		}
		if known == "" {
			return name
		}
		for _, k := range strings.Fields(known) {
			if strings.EqualFold(name, k) {
				return name
			}
		}
		return "unknown_" + name
	}
}

// rewrite translates SQL of the emulated database for PostgreSQL, or returns why it is refused.
// inTransaction means that a transaction is already open.
func (e *emulation) rewrite(sql string, inTransaction bool) (text string, refused *refusal) {
	for rest, statements := sql, 0; len(rest) > 0; {
		var code string
		code, rest = nextStatement(rest)
		if strings.TrimSpace(code) == "" {
			continue
		}
		for i := range e.refused {
			for _, found := range e.refused[i].pattern.FindAllString(code, -1) {
				if unless := e.refused[i].unless; unless == nil || !unless.MatchString(found) {
					return "", &e.refused[i]
				}
			}
		}
		statements++
		if e.ddlAlone && defining.MatchString(code) && (inTransaction || statements > 1 || strings.TrimSpace(rest) != "") {
			return "", &refusal{code: activeTransaction, what: "DDL inside a transaction"}
		}
	}
	sql = setting.ReplaceAllStringFunc(sql, func(found string) string {
		m := setting.FindStringSubmatch(found)
		return m[1] + e.setting(m[2]) + m[3]
	})
	for _, t := range e.translated {
		sql = t.pattern.ReplaceAllString(sql, t.by)
	}
	return sql, nil
}

// setting matches the beginning of a SET of a session's setting.
var setting = regexp.MustCompile(`(?i)((?:^|;)\s*SET\s+)(\w+)(\s*=)`)

var parameter = regexp.MustCompile(`\$(\d+)`)

// tooMany refuses a statement with more parameter types than parameters.
func (e *emulation) tooMany(sql string, types int) *refusal {
	if !e.exactTypes {
		return nil
	}
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		if n, _ := strconv.Atoi(m[1]); n >= types {
			return nil
		}
	}
	if types == 0 {
		return nil
	}
	return &refusal{code: protocolViolation, what: "more types than parameters"}
}

func (r *refusal) message() string { return fmt.Sprintf("not supported by this database: %s", r.what) }
