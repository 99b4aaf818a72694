package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// as connects to the server through a proxy that emulates a database.
func as(t *testing.T, which pgproxy.Database, settings map[string]string) (*pgconn.PgConn, error) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	p, err := pgproxy.Start(pgproxy.Config{Server: server.Address(), Seed: 1, Database: which})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	url, err := p.URL(server.URL(), "emulated")
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range settings {
		config.RuntimeParams[name] = value
	}
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
	}
	return conn, err
}

// TestEmulated checks the version of each database, the features that it refuses in both protocols,
// and the statements that only it understands.
func TestEmulated(t *testing.T) {
	const anything = ""
	for _, tc := range []struct {
		which    pgproxy.Database
		settings map[string]string
		version  string
		sql      map[string]string // to a code, or "" if it is accepted
	}{
		{pgproxy.Yugabyte, map[string]string{"yb_read_from_followers": "off"}, "-YB-2025.", map[string]string{
			`LISTEN a`:                                         "0A000",
			`SELECT pg_notify('a', 'b')`:                       "0A000",
			`SELECT ctid FROM pg_class`:                        "42703",
			`SELECT pg_advisory_lock(1)`:                       "0A000",
			`CREATE TABLE t (n int) WITH (fillfactor = 10)`:    "0A000",
			`BEGIN; CREATE TABLE t (n int)`:                    "25001",
			`SELECT current_setting('yb_read_from_followers')`: anything,
			`SELECT current_setting('yb_read_time')`:           anything,
			`CREATE TEMP TABLE t (a int, b int, PRIMARY KEY (a ASC, b)) SPLIT AT VALUES ((1), (2))`: anything,
			`SELECT 'ctid'`: anything,
		}},
		{pgproxy.Cockroach, map[string]string{"default_transaction_use_follower_reads": "off", "results_buffer_size": "1000"}, "CockroachDB CCL v25.", map[string]string{
			`NOTIFY a`:                         "0A000",
			`SELECT pg_terminate_backend(1)`:   "42883",
			`SELECT pg_table_size('pg_class')`: "42883",
			`SET LOCAL enable_sort = on`:       "0A000",
			`SELECT (WITH RECURSIVE w AS (SELECT 1 UNION ALL SELECT 2 FROM w WHERE false) SELECT count(*) FROM w)`: "0A000",
			`WITH a AS (DELETE FROM missing) SELECT 1`:                                                             "0A000",
			`SELECT 1 FROM pg_class a INNER LOOKUP JOIN pg_class b ON a.oid = b.oid`:                               anything,
			`ALTER TABLE missing CONFIGURE ZONE USING gc.ttlseconds = 600`:                                         anything,
			`SELECT row_count FROM [SHOW STATISTICS FOR TABLE pg_class]`:                                           anything,
			`SELECT current_setting('default_transaction_use_follower_reads')`:                                     anything,
		}},
	} {
		t.Run(string(tc.which), func(t *testing.T) {
			conn, err := as(t, tc.which, tc.settings)
			if err != nil {
				t.Fatal(err)
			}
			results, err := conn.Exec(t.Context(), "SELECT version()").ReadAll()
			if err != nil || !strings.Contains(string(results[0].Rows[0][0]), tc.version) {
				t.Errorf("version %s, error %v", results[0].Rows[0][0], err)
			}
			for sql, want := range tc.sql {
				for protocol, err := range map[string]error{"simple": simple(t.Context(), conn, sql), "extended": nil} {
					if protocol == "extended" && !strings.Contains(sql, ";") && !strings.HasPrefix(sql, "CREATE") {
						err = extended(t.Context(), conn, sql)
					} else if protocol == "extended" {
						continue
					}
					got := anything
					if err != nil {
						got = code(err)
					}
					if got != want {
						t.Errorf("%s, %s: %v, want %q", protocol, sql, err, want)
					}
				}
			}
		})
	}
	// An unknown setting ends the connection.
	for which, setting := range map[pgproxy.Database]string{
		pgproxy.PostgreSQL: "yb_read_from_followers", pgproxy.Yugabyte: "results_buffer_size", pgproxy.Cockroach: "enable_hashjoin",
	} {
		if _, err := as(t, which, map[string]string{setting: "off"}); err == nil || !strings.Contains(err.Error(), "unrecognized configuration parameter") {
			t.Errorf("%s as %q: %v", setting, which, err)
		}
	}
}
