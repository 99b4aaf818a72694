package partition_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/postgres"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

// BenchmarkPartitions has 256 clients create keys of 1 KiB under four prefixes of a
// keyspace on PostgreSQL: in one keyspace, and in four partitions.
//
//	go test ./kv/partition -run xxx -bench Partitions -benchtime 100000x
func BenchmarkPartitions(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ks := openBench(b, prefixes[:n-1]...)
			b.ResetTimer()
			busy(b, ks, int64(b.N), prefixes)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

// BenchmarkNeighbour measures one client that creates small keys while 256 others keep
// another prefix of the keyspace busy: in the same keyspace, and in its own partition.
//
//	go test ./kv/partition -run xxx -bench Neighbour -benchtime 500x
func BenchmarkNeighbour(b *testing.B) {
	for _, name := range []string{"one", "two"} {
		b.Run(name, func(b *testing.B) {
			own := []string{}
			if name == "two" {
				own = append(own, "/quiet/")
			}
			ks := openBench(b, own...)
			ctx, cancel := context.WithCancel(b.Context())
			var others sync.WaitGroup
			others.Go(func() { busyUntil(ctx, b, ks) })
			took := make([]time.Duration, 0, b.N)
			for i := range b.N {
				begin := time.Now()
				if err := create(b.Context(), ks, fmt.Appendf(nil, "/quiet/%08d", i), []byte("small")); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			cancel()
			others.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

var prefixes = []string{"/a/", "/b/", "/c/", "/d/"}

const clients = 256

// openBench opens a keyspace on a new PostgreSQL server.
func openBench(b *testing.B, split ...string) kv.Keyspace {
	b.Helper()
	server, err := playground.Start(b.Context(), playground.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { server.Stop() })
	db, err := postgres.Open(b.Context(), server.SocketURL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	for _, prefix := range split {
		if _, err := db.Split(b.Context(), "default", prefix, kv.SplitOptions{EmptyOnly: true}); err != nil {
			b.Fatal(err)
		}
	}
	ks, err := partition.Open(context.Background(), "default", &engines{db: db, name: "default", opened: map[string]*mvcc.Keyspace{}}, partition.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ks.Close() })
	return ks
}

func create(ctx context.Context, ks kv.Keyspace, key, value []byte) error {
	_, err := ks.Txn(ctx, kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value}}},
	})
	return err
}

// busy has all clients create n keys, distributed over the prefixes.
func busy(b *testing.B, ks kv.Keyspace, n int64, under []string) {
	value := make([]byte, 1024)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				key := fmt.Appendf(nil, "%s%08d", under[i%int64(len(under))], i)
				if err := create(b.Context(), ks, key, value); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// busyUntil has all clients create keys under one prefix until ctx ends.
func busyUntil(ctx context.Context, b *testing.B, ks kv.Keyspace) {
	value := make([]byte, 1024)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := create(ctx, ks, fmt.Appendf(nil, "/busy/%03d-%08d", c, i), value); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkRouting measures the overhead of the composite for a call within one partition.
func BenchmarkRouting(b *testing.B) {
	for _, prefixes := range [][]string{nil, {"/a/", "/b/", "/c/", "/d/"}} {
		b.Run(fmt.Sprint(len(prefixes)), func(b *testing.B) {
			s := newStore(b, prefixes...).open()
			s.put("/b/1", "")
			direct := kv.Keyspace(s.opened[""])
			if len(prefixes) > 0 {
				direct = s.opened["/b/"]
			}
			for name, ks := range map[string]kv.Keyspace{"engine": direct, "composite": s.Keyspace} {
				b.Run(name, func(b *testing.B) {
					req := kv.RangeRequest{Span: kv.Span{Start: []byte("/b/1")}, Limit: 1}
					for b.Loop() {
						if _, err := ks.Range(b.Context(), req); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}
