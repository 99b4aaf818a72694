package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// database is a database that tests of a shared table use.
type database struct {
	name string
	url  string
	// proxy injects faults into its connections; nil for an external database.
	proxy *pgproxy.Proxy
}

// eachDatabase runs a test against PostgreSQL and each database that it emulates, or only
// against the database of -postgres.url.
func eachDatabase(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	if *given != "" {
		t.Run("given", func(t *testing.T) { test(t, &database{name: "given", url: *given}) })
		return
	}
	t.Run("postgres", func(t *testing.T) {
		t.Parallel() // it mostly waits
		test(t, &database{name: "postgres", url: server(t).SocketURL()})
	})
	eachEmulated(t, test)
}

// eachEmulated is for tests that have their own variant for PostgreSQL.
func eachEmulated(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, emulated := range pgproxy.Databases() {
		t.Run(string(emulated), func(t *testing.T) {
			t.Parallel()
			test(t, emulate(t, emulated, 1))
		})
	}
}

// emulate makes our PostgreSQL look like another database through a proxy.
func emulate(t *testing.T, which pgproxy.Database, seed uint64) *database {
	t.Helper()
	s := server(t)
	p, err := pgproxy.Start(pgproxy.Config{Server: s.Address(), Seed: seed, Database: which})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := p.Counts()[pgproxy.FeaturesRefused]; n > 0 {
			t.Errorf("%d requests to %s used features that it lacks", n, which)
		}
		p.Close()
	})
	return &database{name: string(which), url: through(t, p, s, "atoll"), proxy: p}
}

// as returns the URL for a client with another name, whose connections have separate
// faults.
func (d *database) as(t *testing.T, name string) string {
	t.Helper()
	if d.proxy == nil {
		return d.url
	}
	return through(t, d.proxy, server(t), name)
}

// schema creates a schema for a test in the database, and drops it afterwards.
func (d *database) schema(t testing.TB) Option {
	t.Helper()
	if *given == "" {
		return schemaOf(t)
	}
	name := fmt.Sprintf("atoll_test_%d_%d", time.Now().UnixNano(), schemas.Add(1))
	t.Cleanup(func() {
		if err := dropGiven(name); err != nil {
			t.Error(err)
		}
	})
	return WithSchema(name)
}

// dropGiven drops a schema of the external database.
func dropGiven(schema string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgconn.Connect(ctx, *given)
	if err == nil {
		defer c.Close(ctx)
		_, err = execText(ctx, c, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
	}
	if err != nil {
		return fmt.Errorf("drop schema %s: %w", schema, err)
	}
	return nil
}

// store opens a keyspace for a test. All of those in an external database share a schema,
// because in some databases creating tables is slow.
func (d *database) store(t testing.TB) *mvcc.Keyspace {
	t.Helper()
	if *given == "" {
		return openStore(t, d.open(t), mvcc.Options{})
	}
	shared.once.Do(func() { shared.schema = fmt.Sprintf("atoll_test_%d", time.Now().UnixNano()) })
	db := openURL(t, d.url, WithSchema(shared.schema))
	table := openTable(t, db, fmt.Sprintf("keyspace-%d", schemas.Add(1)))
	k, err := mvcc.Open(context.Background(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

func (d *database) open(t testing.TB, opts ...Option) *DB {
	t.Helper()
	return openURL(t, d.url, append([]Option{d.schema(t)}, opts...)...)
}

// ask reads one column as text.
func ask(t testing.TB, db *DB, text string) (answer []string) {
	t.Helper()
	err := db.read(t.Context(), "ask", statementLimit, func(c *conn) error {
		answer = nil
		return c.simple(text, func(cols [][]byte) { answer = append(answer, string(cols[0])) })
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestDetected checks that each database is detected by its version.
func TestDetected(t *testing.T) {
	eachEmulated(t, func(t *testing.T, d *database) {
		want := yugabyteDialect().name
		if strings.HasPrefix(d.name, "cockroach") {
			want = cockroachDialect().name
		}
		db := d.open(t)
		if got := db.dialect.name; got != want {
			t.Errorf("detected as %s", got)
		}
		if total, used, err := db.Size(t.Context()); err != nil || total < 0 || used < 0 {
			t.Error(total, used, err)
		}
	})
}
