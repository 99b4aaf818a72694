package pgproxy

import "testing"

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		sql  string
		want class
	}{
		{`SELECT 1`, class{}},
		{``, class{}},
		{`;; `, class{}},
		{`commit`, class{commit: true}},
		{` /* commit */ SELECT 1 -- COMMIT`, class{}},
		{"-- first\nEND WORK", class{commit: true}},
		{`ROLLBACK`, class{rollback: true}},
		{`abort; rollback;`, class{rollback: true}},
		{`ROLLBACK; SELECT 1`, class{}},
		{`BEGIN; INSERT INTO t VALUES ('; COMMIT'); COMMIT`, class{commit: true}},
		{`SELECT '; COMMIT', "; COMMIT", $$; COMMIT$$, $a$; COMMIT $$ $a$`, class{}},
		{`SELECT 'it''s'; COMMIT`, class{commit: true}},
		{`SELECT $1; COMMIT; SELECT $2`, class{commit: true}},
		{`LISTEN atoll`, class{features: Listen}},
		{`NOTIFY atoll, 'LISTEN'`, class{features: Notify}},
		{`SELECT pg_notify($1, $2)`, class{features: Notify}},
		{`SELECT 'pg_notify'`, class{}},
		{`select pg_try_advisory_xact_lock(1)`, class{features: AdvisoryLocks}},
	} {
		if got := classify(tc.sql); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.sql, got, tc.want)
		}
	}
}
