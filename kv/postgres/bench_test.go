package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

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

// BenchmarkDistant creates keys with 20 ms more in every round trip to the database.
func BenchmarkDistant(b *testing.B) {
	kvtest.BenchmarkCreate(b, func(t testing.TB) kv.Keyspace {
		s := server(t)
		p := proxy(t, s, 1)
		k := openStore(t, openURL(t, through(t, p, s, "distant"), schemaOf(t)), mvcc.Options{})
		p.Set(pgproxy.Faults{ToServer: 10 * time.Millisecond, ToClient: 10 * time.Millisecond})
		return k
	})
}

// BenchmarkSweeping also reports the size of a key on disk.
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

// BenchmarkServers creates keys with several servers on one keyspace, in one process: with
// a direct connection to the database, and with 20 ms more in every round trip.
func BenchmarkServers(b *testing.B) {
	for _, delay := range []time.Duration{0, 10 * time.Millisecond} {
		for _, servers := range []int{1, 3} {
			for _, clients := range []int{64, 256} {
				b.Run(fmt.Sprintf("rtt=%s/servers=%d/clients=%d", 2*delay, servers, clients), func(b *testing.B) {
					benchmarkServers(b, delay, servers, clients)
				})
			}
		}
	}
}

func benchmarkServers(b *testing.B, delay time.Duration, servers, clients int) {
	s := server(b)
	p := proxy(b, s, 1)
	schema := schemaOf(b)
	var all []*mvcc.Keyspace
	var next, commits atomic.Int64
	for range servers {
		url := s.SocketURL()
		if delay > 0 {
			url = through(b, p, s, "distant")
		}
		all = append(all, openStore(b, openURL(b, url, schema), mvcc.Options{Observer: mvcc.Observer{
			Commit: func(int, int, time.Duration, error) { commits.Add(1) }}}))
	}
	if delay > 0 {
		p.Set(pgproxy.Faults{ToServer: delay, ToClient: delay})
	}
	var group errgroup.Group
	b.ResetTimer()
	for i := range clients {
		group.Go(func() error {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return nil
				}
				if err := create(all[i%servers], n); err != nil {
					return err
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
	b.ReportMetric(float64(b.N)/float64(commits.Load()), "creates/commit")
}
