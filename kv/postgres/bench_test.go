package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

func create(k *mvcc.Keyspace, i int64) error { return kvtest.Create(context.Background(), k, i) }

func openBench(t testing.TB) kv.Keyspace { return openStore(t, openTest(t), mvcc.Options{}) }

func BenchmarkCreate(b *testing.B) { kvtest.BenchmarkCreate(b, openBench) }
func BenchmarkUpdate(b *testing.B) { kvtest.BenchmarkUpdate(b, openBench) }
func BenchmarkGet(b *testing.B)    { kvtest.BenchmarkGet(b, openBench) }
func BenchmarkList(b *testing.B)   { kvtest.BenchmarkList(b, openBench) }

// BenchmarkDistant creates with 20 ms more in every round trip to the database.
func BenchmarkDistant(b *testing.B) {
	kvtest.BenchmarkCreate(b, func(t testing.TB) kv.Keyspace {
		s := server(t)
		p := proxy(t, s, 1)
		k := openStore(t, openURL(t, through(t, p, s, "distant"), schemaOf(t)), mvcc.Options{})
		p.Set(pgproxy.Faults{ToServer: 10 * time.Millisecond, ToClient: 10 * time.Millisecond})
		return k
	})
}

// BenchmarkSweeping tells also what a key takes on disk.
func BenchmarkSweeping(b *testing.B) {
	var db *DB
	kvtest.BenchmarkSweeping(b, func(t testing.TB) kv.Keyspace {
		db = openTest(t)
		return openStore(t, db, mvcc.Options{})
	}, func(b *testing.B, keys int) {
		total, _, err := db.Size(b.Context())
		if err != nil {
			b.Error(err)
		}
		b.ReportMetric(float64(total)/float64(keys), "bytes/key")
	})
}
