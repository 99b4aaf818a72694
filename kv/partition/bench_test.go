package partition_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/postgres"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

// BenchmarkPartitions has 256 clients create keys of 1 KiB under four prefixes of a
// keyspace on PostgreSQL: in one order of revisions, and in four.
//
//	go test ./kv/partition -run xxx -bench Partitions -benchtime 100000x
func BenchmarkPartitions(b *testing.B) {
	const clients = 256
	prefixes := []string{"/a/", "/b/", "/c/", "/d/"}
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server, err := playground.Start(b.Context(), playground.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer server.Stop()
			db, err := postgres.Open(b.Context(), server.SocketURL())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			for _, prefix := range prefixes {
				if n == 1 {
					break
				}
				if _, err := db.Split(b.Context(), "default", prefix, kv.SplitOptions{EmptyOnly: true}); err != nil {
					b.Fatal(err)
				}
			}
			ks, err := partition.Open(context.Background(), "default", &engines{db: db, name: "default", opened: map[string]*mvcc.Keyspace{}}, partition.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer ks.Close()
			value := make([]byte, 1024)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						key := fmt.Appendf(nil, "%s%08d", prefixes[i%4], i)
						_, err := ks.Txn(b.Context(), kv.TxnRequest{
							If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod}},
							Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value}}},
						})
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

// BenchmarkRouting is what a composite adds to a call that stays in one place.
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
