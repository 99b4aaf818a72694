package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// TestLostCommits checks that a database that has lost a commit, or has a different one in
// its place, is detected by reads and on a new connection.
func TestLostCommits(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		for name, harm := range map[string]string{
			"head":   `UPDATE head SET rev = rev - 1`,
			"token":  `UPDATE segment SET token = decode('00000000000000000000000000000000', 'hex')`,
			"commit": `DELETE FROM segment WHERE rev > 2`,
			"origin": `UPDATE keyspace SET origin = decode('00', 'hex')`,
		} {
			t.Run(name, func(t *testing.T) {
				db := d.open(t)
				table := openTable(t, db, "default")
				write(t, table, "a", "1")
				write(t, table, "a", "2")
				ask(t, openURL(t, d.url, WithSchema(db.opts.schema)), harm)
				db.pool.dropIdle()
				if _, err := table.Head(t.Context()); !errors.Is(err, kv.ErrBehind) {
					t.Errorf("%v", err)
				}
			})
		}
	})
}

// TestOldLists checks lists at an old revision, however few of the keys existed then,
// complete and page by page.
func TestOldLists(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		k := openTable(t, d.open(t), "default")
		write(t, k, "b", "old", "k0700", "old", "z", "old")
		var later []string
		for i := range 1200 { // more than two chunks
			later = append(later, "k"+string([]byte{byte('0' + i/1000), byte('0' + i/100%10), byte('0' + i/10%10), byte('0' + i%10)}), "new")
		}
		write(t, k, later...)
		write(t, k, "b", "", "b", "newer", "z", "")
		const old = 4 // after the first three
		for _, limit := range []int64{0, 1, 2, 3, 4} {
			res, _, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), Revision: old, Limit: limit}, true)
			if err != nil {
				t.Fatal(err)
			}
			var keys []string
			for _, e := range res.KVs {
				keys = append(keys, string(e.Key)+"="+string(e.Value))
			}
			want := []string{"b=old", "k0700=old", "z=old"}
			more := limit > 0 && limit < 3
			if more {
				want = want[:limit]
			}
			if got := strings.Join(keys, " "); got != strings.Join(want, " ") || res.More != more || res.Count != 3 {
				t.Errorf("limit %d: %s, more %v, count %d", limit, got, res.More, res.Count)
			}
		}
		res, _, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), Revision: old, CountOnly: true}, true)
		if err != nil || res.Count != 3 {
			t.Errorf("count: %+v, %v", res, err)
		}
		// Reads in a transaction return the same.
		err = k.Update(t.Context(), nil, func(tx kv.Tx) error {
			res, err := tx.Range(kv.RangeRequest{Span: kv.Prefix([]byte("k")), Revision: old, Limit: 10}, true)
			if err == nil && (len(res.KVs) != 1 || res.Count != 1) {
				t.Errorf("in a transaction: %+v", res)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestLongRevisions checks that the log is read in whole revisions, regardless of their
// number of changes and position.
func TestLongRevisions(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		k := openTable(t, d.open(t), "default")
		write(t, k, "a", "1")
		err := k.Update(t.Context(), nil, func(tx kv.Tx) error {
			var changes []kv.Change
			for i := range 700 {
				key := []byte{'k', byte(i / 256), byte(i)}
				changes = append(changes, kv.Change{KV: kv.KeyValue{Key: key, Value: key, ModRevision: 3, CreateRevision: 3, Version: 1}})
			}
			return tx.Write(3, changes)
		})
		if err != nil {
			t.Fatal(err)
		}
		write(t, k, "a", "2", "a", "3")
		fresh := openTable(t, openURL(t, d.url, WithSchema(k.db.opts.schema)), "default")
		for _, table := range []*table{k, fresh} {
			for _, want := range []struct {
				after, upTo kv.Revision
				limit, rows int
				last        kv.Revision
			}{
				{1, 100, 1, 1, 2}, {1, 100, 2, 701, 3}, {1, 100, 701, 701, 3}, {1, 100, 702, 702, 4}, {1, 100, 10000, 703, 5},
				{2, 100, 5, 700, 3}, {2, 3, 10000, 700, 3}, {3, 4, 10, 1, 4}, {4, 100, 10, 1, 5}, {5, 100, 10, 0, 0}, {1, 1, 10, 0, 0},
			} {
				list, at, err := table.Changes(t.Context(), want.after, want.upTo, want.limit, true)
				if err != nil || len(list) != want.rows || at.Revision != 5 || lastRevision(list) != want.last {
					t.Errorf("%+v: %d rows up to %d, at %d, %v", want, len(list), lastRevision(list), at.Revision, err)
				}
				if len(list) >= 700 && list[len(list)-1].KV.ModRevision == 3 && list[len(list)-1].Sub != 699 {
					t.Errorf("%+v: the last change has number %d of its revision", want, list[len(list)-1].Sub)
				}
			}
		}
	})
}

// TestOperations runs splits, merges, recovery, and the measurement of history on each
// database.
func TestOperations(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db := d.open(t)
		write(t, openTable(t, db, "default"), "/a/1", "1", "/a/2", "2", "/b/1", "3", "/a/1", "4", "/b/2", "5", "/b/2", "")
		history, err := openTable(t, db, "default").History(t.Context())
		if err != nil || history.Changes != 6 || history.Revision != 7 {
			t.Errorf("history: %+v, %v", history, err)
		}
		moved, err := db.Split(t.Context(), "default", "/a/", kv.SplitOptions{})
		if err != nil || moved.Keys != 2 {
			t.Fatalf("split: %+v, %v", moved, err)
		}
		db = openURL(t, d.url, WithSchema(db.opts.schema)) // tables that were open must be reopened
		part := openTable(t, db, kv.PartitionName("default", "/a/"))
		write(t, part, "/a/3", "6")
		if got := dump(t, part, 0); !strings.HasPrefix(got, "/a/1=4@") || strings.Count(got, "=") != 3 {
			t.Errorf("the partition: %s", got)
		}
		if got := dump(t, openTable(t, db, "default"), 0); got != "/b/1=3@4" {
			t.Errorf("the parent: %s", got)
		}
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if moved, err = db.Merge(t.Context(), "default", "/a/", kv.SplitOptions{}); err != nil || moved.Keys != 3 {
			t.Fatalf("merge: %+v, %v", moved, err)
		}
		db = openURL(t, d.url, WithSchema(db.opts.schema))
		whole := openTable(t, db, "default")
		if got := dump(t, whole, 0); strings.Count(got, "=") != 4 {
			t.Errorf("merged: %s", got)
		}
		before, err := whole.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if to := recoverBy(t, whole, 1_000_000); to < before.Revision+1_000_000 {
			t.Errorf("recovered at revision %d", to)
		}
		write(t, whole, "/c", "7")
		if err := db.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestUnsafeDatabases checks that databases that could lose acknowledged writes, or return
// stale data, are refused, and that the error names the remedy.
func TestUnsafeDatabases(t *testing.T) {
	yugabyte := map[string]string{"server_version": "15.12-YB-2025.2.0.0-b0", "server_encoding": "UTF8", "max_connections": "300"}
	yugabyteSession := map[string]string{"yb_read_from_followers": "off", "yb_read_after_commit_visibility": "strict",
		"yb_disable_transactional_writes": "off", "yb_read_time": "0", "plan_cache_mode": "force_generic_plan"}
	cockroach := map[string]string{"version": "CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu)", "default_transaction_read_only": "off"}
	cockroachSession := map[string]string{"default_transaction_use_follower_reads": "off",
		"default_transaction_isolation": "serializable", "plan_cache_mode": "force_custom_plan"}
	server := func(d *dialect) func(map[string]string) error {
		return func(found map[string]string) error { return d.check(found, 17) }
	}
	for _, group := range []struct {
		check func(map[string]string) error
		sound map[string]string
		bent  [][3]string // name, value, part of the error
	}{
		{server(yugabyteDialect()), yugabyte, [][3]string{
			{"server_version", "11.2-YB-2024.2.1.0-b0", "2025.1 or later"}, {"server_version", "15.1", "2025.1 or later"},
			{"server_encoding", "SQL_ASCII", "ENCODING 'UTF8'"}, {"max_connections", "15", "pool_max_conns"}}},
		{yugabyteDialect().checkSession, yugabyteSession, [][3]string{
			{"yb_read_from_followers", "on", "RESET yb_read_from_followers"}, {"yb_read_after_commit_visibility", "relaxed", "acknowledged"},
			{"yb_disable_transactional_writes", "on", "in part"}, {"yb_read_time", "1700000000 ms", "stale"}, {"plan_cache_mode", "auto", "pool_mode = session"}}},
		{server(cockroachDialect()), cockroach, [][3]string{
			{"version", "CockroachDB CCL v23.2.4 (x)", "24.3 or later"}, {"version", "CockroachDB", "24.3 or later"},
			{"default_transaction_read_only", "on", "RESET default_transaction_read_only"}}},
		{cockroachDialect().checkSession, cockroachSession, [][3]string{
			{"default_transaction_use_follower_reads", "on", "RESET default_transaction_use_follower_reads"},
			{"default_transaction_isolation", "read committed", "one state"}}},
	} {
		if err := group.check(group.sound); err != nil {
			t.Error(err)
		}
		for _, b := range group.bent {
			found := map[string]string{}
			for name, value := range group.sound {
				found[name] = value
			}
			found[b[0]] = b[1]
			if err := group.check(found); !errors.Is(err, kv.ErrInvalidRequest) || !strings.Contains(err.Error(), b[2]) {
				t.Errorf("%s = %s: %v", b[0], b[1], err)
			}
		}
	}
}

// TestDialectOf checks that unknown databases are refused.
func TestDialectOf(t *testing.T) {
	for version, want := range map[string]string{
		"PostgreSQL 15.9 (Debian 15.9-0+deb12u1) on x86_64-pc-linux-gnu":  "PostgreSQL",
		"PostgreSQL 15.12-YB-2025.2.0.0-b131 on x86_64-pc-linux-gnu":      "YugabyteDB",
		"CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/03)": "CockroachDB",
		"Materialize v0.99 (whatever)":                                    "",
		"EnterpriseDB 9.5.0.0 on x86_64-unknown-linux-gnu":                "",
	} {
		d, err := dialectOf(version)
		if want == "" && (!errors.Is(err, kv.ErrInvalidRequest) || !strings.Contains(err.Error(), "use PostgreSQL")) ||
			want != "" && (err != nil || d.name != want) {
			t.Errorf("%s: %v, %v", version, d, err)
		}
	}
}

// TestErrors checks which errors are retried, and which leave the outcome of COMMIT
// unknown.
func TestErrors(t *testing.T) {
	const again, passes, final = "again", "passes", "final"
	for _, tc := range []struct {
		d             *dialect
		code, message string
		want          string
		unknown       bool // at COMMIT
	}{
		{postgresDialect(), "40001", "", again, false},
		{postgresDialect(), "55P03", "", again, false},
		{postgresDialect(), "57014", "", final, false},
		{postgresDialect(), "40003", "", final, true},
		{postgresDialect(), "XX000", "", final, false},
		{yugabyteDialect(), "40001", "Restart read required", again, false},
		{yugabyteDialect(), "XX000", "Query error: schema version mismatch for table 0: expected 2, got 1", again, true},
		{yugabyteDialect(), "XX000", "Timed out: Perform RPC (request call id 71) to 10.0.0.1:9100 timed out after 120.000s", passes, true},
		{yugabyteDialect(), "72000", "Snapshot too old. Read point: 1, earliest read time allowed: 2", passes, true},
		{yugabyteDialect(), "25P02", "current transaction is aborted", again, true},
		{yugabyteDialect(), "57014", "canceling statement due to statement timeout", again, true},
		{yugabyteDialect(), "XX000", "unexpected", final, true},
		{yugabyteDialect(), "23505", "", final, true},
		{cockroachDialect(), "40001", "restart transaction: TransactionRetryWithProtoRefreshError", again, false},
		{cockroachDialect(), "23505", "duplicate key value violates unique constraint", again, true},
		{cockroachDialect(), "40003", "result is ambiguous", again, true},
		{cockroachDialect(), "58C00", "", passes, true},
		{cockroachDialect(), "57014", "", final, true},
		{unknownDialect(), "72000", "Snapshot too old. Read point: 1, earliest read time allowed: 2", passes, false},
		{unknownDialect(), "58C01", "range unavailable", passes, false},
		{unknownDialect(), "XX000", "Catalog Version Mismatch: A DDL occurred while processing this query. Try again.", again, false},
		{unknownDialect(), "57014", "", final, false},
	} {
		err := &pgconn.PgError{Code: tc.code, Message: tc.message}
		got := final
		switch {
		case tc.d.again(err):
			got = again
		case tc.d.transient(err):
			got = passes
		}
		if unknown := tc.d.unknown(tc.code); got != tc.want || unknown != tc.unknown {
			t.Errorf("%s, %s %q: %s, unknown at COMMIT %v", tc.d.name, tc.code, tc.message, got, unknown)
		}
	}
}

// TestTables checks the statements that create tables in distributed databases.
func TestTables(t *testing.T) {
	for _, d := range []*dialect{yugabyteDialect(), cockroachDialect()} {
		statements := repeatable(d.ddl(migrations[0]))
		for _, s := range statements {
			if !strings.Contains(s, " IF NOT EXISTS ") || strings.Contains(s, "WITH (") || strings.ContainsAny(s, "{}") {
				t.Errorf("%s: %s", d.name, s)
			}
		}
		all := strings.Join(statements, ";\n")
		if ranges := strings.Count(all, " ASC,"); d.name == "YugabyteDB" && ranges != 5 {
			t.Errorf("%d keys are in order:\n%s", ranges, all)
		}
		if d.name == "CockroachDB" && (strings.Contains(all, "integer") || strings.Contains(all, "COLLATE")) {
			t.Error(all)
		}
	}
}
