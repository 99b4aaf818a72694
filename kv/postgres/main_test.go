package postgres

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

var (
	seeds = flag.Int("runs", 1, "number of seeds for random tests")
	given = flag.String("postgres.url", "", "an external database for the tests, which then run one after the other: "+
		"the postgres://… URL of a PostgreSQL, YugabyteDB or CockroachDB, in which schemas are created and dropped")
)

// stage is the one PostgreSQL of this test binary, started by the first test that needs it.
type stage struct {
	once   sync.Once
	server *playground.Server
	err    error
	schema string // in an external database
}

var shared stage

// template is what all servers of this test binary are started from.
var template struct {
	once sync.Once
	*playground.Template
	err error
}

// start starts a PostgreSQL.
func start(ctx context.Context) (*playground.Server, error) {
	template.once.Do(func() { template.Template, template.err = playground.NewTemplate(context.Background()) })
	if template.err != nil {
		return nil, template.err
	}
	return template.Start(ctx, nil)
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if template.Template != nil {
		template.Remove()
	}
	if shared.schema != "" {
		if err := dropGiven(shared.schema); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// server returns the PostgreSQL that all tests share.
func server(t testing.TB) *playground.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	if *given != "" {
		t.Skip("disrupts its PostgreSQL; not with -postgres.url")
	}
	shared.once.Do(func() { shared.server, shared.err = start(context.Background()) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// own starts a PostgreSQL for one disruptive test.
func own(t testing.TB) *playground.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	if *given != "" {
		t.Skip("disrupts its PostgreSQL; not with -postgres.url")
	}
	s, err := start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	return s
}

var schemas atomic.Int64

// schemaOf creates a separate schema for each test.
func schemaOf(t testing.TB) Option {
	t.Helper()
	name := fmt.Sprintf("atoll_%d", schemas.Add(1))
	t.Cleanup(func() {
		if shared.server != nil {
			shared.server.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+name+" CASCADE")
		}
	})
	return WithSchema(name)
}

func openURL(t testing.TB, url string, opts ...Option) *DB {
	t.Helper()
	db, err := Open(t.Context(), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func openTest(t testing.TB, opts ...Option) *DB {
	t.Helper()
	return openURL(t, server(t).SocketURL(), append([]Option{schemaOf(t)}, opts...)...)
}

func openTable(t testing.TB, db *DB, name string) *table {
	t.Helper()
	opened, err := db.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return opened.(*table)
}

func openStore(t testing.TB, db *DB, opts mvcc.Options) *mvcc.Keyspace {
	t.Helper()
	k, err := mvcc.Open(context.Background(), openTable(t, db, "default"), db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// changesOf makes changes inside an update that put (or with value "", delete) keys, each
// in its own revision.
func changesOf(tx kv.Tx, pairs ...string) error {
	rev := tx.Head().Revision
	now := map[string]*kv.KeyValue{}
	var changes []kv.Change
	for i := 0; i < len(pairs); i += 2 {
		rev++
		key, value := []byte(pairs[i]), []byte(pairs[i+1])
		old, known := now[string(key)]
		if !known {
			found, err := tx.Load([]kv.Lookup{{Key: key}})
			if err != nil {
				return err
			}
			old = found[0]
		}
		ch := kv.Change{Deleted: len(value) == 0, KV: kv.KeyValue{
			Key: key, Value: value, ModRevision: rev, CreateRevision: rev, Version: 1}}
		if old != nil {
			ch.PrevRevision, ch.KV.CreateRevision, ch.KV.Version = old.ModRevision, old.CreateRevision, old.Version+1
		}
		if now[string(key)] = &ch.KV; ch.Deleted {
			now[string(key)] = nil
		}
		changes = append(changes, ch)
	}
	return tx.Write(rev, changes)
}

func write(t testing.TB, table kv.Table, pairs ...string) {
	t.Helper()
	if err := table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, pairs...) }); err != nil {
		t.Fatal(err)
	}
}

func dump(t testing.TB, table kv.Table, rev kv.Revision) (out string) {
	t.Helper()
	res, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil), Revision: rev}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.KVs {
		out += fmt.Sprintf("%s=%s@%d ", e.Key, e.Value, e.ModRevision)
	}
	return strings.TrimSpace(out)
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for begin := time.Now(); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("timed out after 30 s:", what)
		}
	}
}

func sql(t testing.TB, s *playground.Server, text string) string {
	t.Helper()
	out, err := s.Exec(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
