package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/pgproxy"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// stage is a database and the proxy in front of it. It serves one run after the other.
type stage struct {
	database *postgres.Server // nil: a given database, which must not be harmed
	proxy    *pgproxy.Proxy   // nil: connections cannot be tampered with
	network  *network         // nil: servers share the host's network
	url      string           // of the database itself
	emulated pgproxy.Database
	schema   string // a schema of its own in a given database
}

func (st *stage) possible() possible {
	return possible{proxy: st.proxy != nil, database: st.database != nil, distributed: st.emulated != pgproxy.PostgreSQL,
		lockless: st.emulated == pgproxy.Cockroach}
}

// emulated returns the database of the flag -database.
func emulated(t *testing.T) pgproxy.Database {
	t.Helper()
	if *dataFlag == "postgres" {
		return pgproxy.PostgreSQL
	}
	for _, d := range pgproxy.Databases() {
		if *dataFlag == string(d) {
			return d
		}
	}
	t.Fatalf("-database %s: must be postgres or one of %v", *dataFlag, pgproxy.Databases())
	return ""
}

// newStage starts a database, or uses the given one.
func newStage(t *testing.T) *stage { return newStageAt(t, "") }

// newStageAt is newStage with an address for the proxy to listen on.
func newStageAt(t *testing.T, listen string) *stage {
	t.Helper()
	if given := cmp.Or(*givenFlag, os.Getenv(datastoreVariable)); given != "" {
		return externalStage(t, given)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	database, err := postgres.Start(ctx, postgres.Config{Settings: map[string]string{
		// A crash recovery must be fast.
		"max_wal_size": "256MB", "checkpoint_timeout": "30s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Stop() })
	st := &stage{database: database, url: database.URL(), emulated: emulated(t)}
	st.startProxy(t, database.Address(), listen)
	// The first server creates the schema. Its sequences are cached, as by default in YugabyteDB.
	st.proxy.Set(pgproxy.Faults{SequenceCache: 100})
	if st.emulated != pgproxy.PostgreSQL {
		t.Cleanup(func() {
			if n := st.proxy.Counts()[pgproxy.FeaturesRefused]; n > 0 {
				t.Errorf("%d statements used features that %s does not have", n, st.emulated)
			}
		})
	}
	through, err := st.urlFor("schema")
	if err != nil {
		t.Fatal(err)
	}
	first := serverConfig{Name: "schema", URL: through, Keyspace: "first"}
	db, ks, err := first.openWithRetry(ctx, newJumpyClock(nil, 0))
	if err != nil {
		t.Fatal(err)
	}
	ks.Close()
	db.Close()
	return st
}

// externalStage uses a given database. The database itself is not harmed, and its connections can be
// tampered with only if they are not encrypted.
func externalStage(t *testing.T, given string) *stage {
	t.Helper()
	u, err := url.Parse(given)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") || u.Host == "" {
		t.Fatalf("%s: must be postgres://user:password@host:port/database?sslmode=…", datastoreVariable)
	}
	st := &stage{url: given, schema: fmt.Sprintf("atoll_faults_%d", time.Now().UnixNano())}
	t.Cleanup(func() { st.drop(t) })
	switch u.Query().Get("sslmode") {
	case "", "disable", "allow", "prefer":
		if strings.Contains(u.Host, ",") {
			t.Log("several hosts: no proxy, so no connection faults")
			return st
		}
		port := u.Port()
		if port == "" {
			port = "5432"
		}
		st.startProxy(t, net.JoinHostPort(u.Hostname(), port), "")
	default:
		t.Log("encrypted connections: no proxy, so no connection faults")
	}
	return st
}

// drop removes the schema from a given database.
func (st *stage) drop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	statement := "DROP SCHEMA IF EXISTS " + st.schema + " CASCADE"
	if out, err := exec.CommandContext(ctx, "psql", "--no-psqlrc", "--quiet", "--dbname", st.url, "--command", statement).CombinedOutput(); err != nil {
		t.Logf("the schema remains (%v: %s); remove it: %s", err, out, statement)
	}
}

func (st *stage) startProxy(t *testing.T, address, listen string) {
	t.Helper()
	proxy, err := pgproxy.Start(pgproxy.Config{Server: address, Listen: listen, Seed: *seedFlag, Database: st.emulated})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	st.proxy = proxy
}

// urlFor returns the database URL for a server.
func (st *stage) urlFor(server string) (string, error) {
	if st.proxy == nil {
		return st.url, nil
	}
	return st.proxy.URL(st.url, server)
}

// restart crashes the database and starts it again.
func (st *stage) restart(ctx context.Context) error {
	st.database.Kill()
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	for {
		err := st.database.Restart(ctx)
		if err == nil {
			return nil
		}
		// A killed process that waits for the disk ends later, and PostgreSQL does not start before
		// that.
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the database does not come back: %w", err)
		}
	}
}
