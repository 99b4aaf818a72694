package postgres

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// explained returns the plan of a prepared statement, with generic parameters.
func explained(t *testing.T, c *conn, s statement) string {
	t.Helper()
	var types, nulls []string
	names := map[uint32]string{oidBool: "bool", oidBytes: "bytea", oidInt8: "int8", oidInt4: "int4", oidText: "text",
		oidBoolArray: "bool[]", oidByteArray: "bytea[]", oidInt4Array: "int4[]", oidInt8Array: "int8[]"}
	for _, p := range s.params {
		types = append(types, names[p])
		nulls = append(nulls, "NULL")
	}
	prepare, execute := "PREPARE explained", "EXPLAIN EXECUTE explained"
	if len(types) > 0 {
		prepare += "(" + strings.Join(types, ", ") + ")"
		execute += "(" + strings.Join(nulls, ", ") + ")"
	}
	var lines []string
	for _, text := range []string{prepare + " AS " + s.sql, execute, "DEALLOCATE explained"} {
		err := c.simple(text, func(cols [][]byte) { lines = append(lines, string(cols[0])) })
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return strings.Join(lines, "\n")
}

// harmless are scans of rows in memory: the requested keys, and the rows that a statement
// has just found.
var harmless = regexp.MustCompile(`Function Scan|WorkTable Scan|CTE Scan|Subquery Scan|Tid Scan`)

var scans = regexp.MustCompile(`[A-Z]\w+ (Only )?Scan|Scan using|Hash|Merge|Materialize|Sort|Memoize|Gather`)

// condition matches the limit of an index scan, and narrow is the required limit, in an
// index of the rows of all keyspaces.
var (
	condition = regexp.MustCompile(`Index Cond: \((.*)\)$`)
	narrow    = map[string]string{"current_pkey": "key ", "log_pkey": "id ", "current_lease": "lease "}
)

// TestPlans checks that every statement reads by an index with the given key, regardless of
// statistics: none at all, those of a table that was tiny or had one keyspace when
// analyzed, those of a large one, fresh or not.
func TestPlans(t *testing.T) {
	s := server(t)
	option := schemaOf(t)
	db := openURL(t, s.SocketURL(), option)
	schema := db.opts.schema
	k := openStore(t, db, mvcc.Options{})
	tables := []string{"head", "log", "segment", "current", "lease", "sweep", "keyspace"}
	analyze := func() {
		for _, table := range tables {
			sql(t, s, "ANALYZE "+schema+"."+table)
		}
	}
	// lie makes the catalogue report another size of tables.
	lie := func(pages, rows int) {
		sql(t, s, fmt.Sprintf(`UPDATE pg_class SET relpages = %d, reltuples = %d
			WHERE relnamespace = '%s'::regnamespace AND relkind IN ('r', 'i')`, pages, rows, schema))
	}
	for _, state := range []struct {
		name string
		set  func()
	}{
		{"never analyzed, empty", func() {}},
		{"analyzed while empty", analyze},
		{"analyzed while empty, then filled", func() { kvtest.Fill(t, k, 3000) }},
		{"fresh", analyze},
		{"a thousandth of the truth", func() { lie(1, 3) }},
		{"no rows", func() { lie(0, 0) }},
		{"a million times the truth", func() { lie(100_000_000, 2_000_000_000) }},
	} {
		t.Run(state.name, func(t *testing.T) {
			state.set()
			c, err := db.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			for i, q := range db.queries {
				if !strings.Contains(q.sql, " ") || strings.HasPrefix(q.sql, "BEGIN") || query(i) == qAsync {
					continue
				}
				plan := explained(t, c, q)
				if bad := badPlan(query(i), plan); bad != "" {
					t.Errorf("%s:\n%s\n%s", bad, q.sql, plan)
				}
			}
		})
	}
}

func badPlan(q query, plan string) string {
	if q == qKeyspaces {
		return "" // all of them are requested
	}
	index := ""
	for line := range strings.Lines(plan) {
		line = strings.TrimSpace(line)
		if i := strings.Index(line, "  (cost="); i >= 0 {
			line = line[:i]
		}
		if m := condition.FindStringSubmatch(line); m != nil {
			if by := narrow[index]; by == "" && !strings.HasPrefix(index, "keyspace_") && !strings.Contains(m[1], "ks = ") || !strings.Contains(m[1], by) {
				return "reads a whole keyspace: " + line
			}
			index = ""
			continue
		}
		_, after, found := strings.Cut(line, "Scan using ")
		switch {
		case found && index != "":
			return "reads a complete index: " + index
		case found:
			index, _, _ = strings.Cut(after, " ")
		case harmless.MatchString(line):
		case scans.MatchString(line):
			return "does not use an index: " + line
		}
	}
	if index != "" {
		return "reads a complete index: " + index
	}
	return ""
}

// TestBadPlans checks that badPlan detects bad plans.
func TestBadPlans(t *testing.T) {
	for _, plan := range []string{
		"Seq Scan on log l  (cost=1..2)",
		"Nested Loop\n  ->  Index Scan using log_pkey on log l  (cost=1..2)\n  Index Cond: (ks = $1)",
		"Index Scan using current_pkey on current c  (cost=1..2)\n  Filter: (key = $1)",
		"Hash Join\n  ->  Function Scan on unnest u",
		"Sort",
	} {
		if badPlan(qLoad, plan) == "" {
			t.Error("not detected as a bad plan:", plan)
		}
	}
}
