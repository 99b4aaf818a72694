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

// stage is a database and the proxy in front of it, for one run after the
// other.
type stage struct {
	database *postgres.Server // nil: not ours to harm
	proxy    *pgproxy.Proxy   // nil: connections cannot be tampered with
	network  *network         // nil: servers have none of their own
	url      string           // of the database itself
	emulated pgproxy.Database
	schema   string // of its own in a database that was given
}

func (st *stage) possible() possible {
	return possible{proxy: st.proxy != nil, database: st.database != nil, distributed: st.emulated != pgproxy.PostgreSQL,
		lockless: st.emulated == pgproxy.Cockroach}
}

// emulated is what -database asks for.
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
	t.Fatalf("-database %s: it can be postgres, or one of %v", *dataFlag, pgproxy.Databases())
	return ""
}

// newStage starts a database of our own, or takes the one that was named.
func newStage(t *testing.T) *stage { return newStageAt(t, "") }

// newStageAt has the proxy listen at an address.
func newStageAt(t *testing.T, listen string) *stage {
	t.Helper()
	if given := cmp.Or(*givenFlag, os.Getenv(datastoreVariable)); given != "" {
		return foreignStage(t, given)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	database, err := postgres.Start(ctx, postgres.Config{Settings: map[string]string{
		// A crash is to be over soon.
		"max_wal_size": "256MB", "checkpoint_timeout": "30s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Stop() })
	st := &stage{database: database, url: database.URL(), emulated: emulated(t)}
	st.startProxy(t, database.Address(), listen)
	// The schema is made by whoever comes first: with sequences as YugabyteDB has
	// them, by default.
	st.proxy.Set(pgproxy.Faults{SequenceCache: 100})
	if st.emulated != pgproxy.PostgreSQL {
		t.Cleanup(func() {
			if n := st.proxy.Counts()[pgproxy.FeaturesRefused]; n > 0 {
				t.Errorf("%d times something was asked of %s that it does not have", n, st.emulated)
			}
		})
	}
	through, err := st.urlFor("schema")
	if err != nil {
		t.Fatal(err)
	}
	first := place{Name: "schema", URL: through, Keyspace: "first"}
	db, ks, err := first.openPatiently(ctx, newJumpyClock(nil, 0))
	if err != nil {
		t.Fatal(err)
	}
	ks.Close()
	db.Close()
	return st
}

// foreignStage uses a database of somebody else's: it is not harmed itself, and
// its connections can be tampered with only where they are not encrypted.
func foreignStage(t *testing.T, given string) *stage {
	t.Helper()
	u, err := url.Parse(given)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") || u.Host == "" {
		t.Fatalf("%s: write postgres://user:password@host:port/database?sslmode=…", datastoreVariable)
	}
	st := &stage{url: given, schema: fmt.Sprintf("atoll_faults_%d", time.Now().UnixNano())}
	t.Cleanup(func() { st.drop(t) })
	switch u.Query().Get("sslmode") {
	case "", "disable", "allow", "prefer":
		if strings.Contains(u.Host, ",") {
			t.Log("several hosts: no proxy in between, so no faults of connections")
			return st
		}
		port := u.Port()
		if port == "" {
			port = "5432"
		}
		st.startProxy(t, net.JoinHostPort(u.Hostname(), port), "")
	default:
		t.Log("encrypted connections: no proxy in between, so no faults of connections")
	}
	return st
}

// drop removes the schema from a database that is not ours.
func (st *stage) drop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	statement := "DROP SCHEMA IF EXISTS " + st.schema + " CASCADE"
	if out, err := exec.CommandContext(ctx, "psql", "--no-psqlrc", "--quiet", "--dbname", st.url, "--command", statement).CombinedOutput(); err != nil {
		t.Logf("it stays behind (%v: %s); do it yourself: %s", err, out, statement)
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

// urlFor is how a server reaches the database.
func (st *stage) urlFor(server string) (string, error) {
	if st.proxy == nil {
		return st.url, nil
	}
	return st.proxy.URL(st.url, server)
}

// restart has the database crash and come back.
func (st *stage) restart(ctx context.Context) error {
	st.database.Kill()
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	for {
		err := st.database.Restart(ctx)
		if err == nil {
			return nil
		}
		// A process that was killed while it waited for the disk ends a little
		// later, and PostgreSQL does not start beside it.
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the database does not come back: %w", err)
		}
	}
}
