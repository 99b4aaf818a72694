package mvcc_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

var benchPage = flag.Int("page", 4096, "page size of the benchmark databases")

func openBench(opts mvcc.Options) kvtest.Open {
	return func(t testing.TB) kv.Keyspace { return openStore(t, opts, sqlite.WithPageSize(*benchPage)) }
}

func BenchmarkCreate(b *testing.B) { kvtest.BenchmarkCreate(b, openBench(mvcc.Options{})) }
func BenchmarkUpdate(b *testing.B) { kvtest.BenchmarkUpdate(b, openBench(mvcc.Options{})) }
func BenchmarkGet(b *testing.B)    { kvtest.BenchmarkGet(b, openBench(mvcc.Options{})) }
func BenchmarkGetUncached(b *testing.B) {
	kvtest.BenchmarkGet(b, openBench(mvcc.Options{CacheBytes: -1}))
}
func BenchmarkList(b *testing.B)     { kvtest.BenchmarkList(b, openBench(mvcc.Options{})) }
func BenchmarkSweeping(b *testing.B) { kvtest.BenchmarkSweeping(b, openBench(mvcc.Options{}), nil) }

// BenchmarkListOld reads 20,000 keys at a revision after which one key, or every key, has
// changed many times: it has to undo these changes.
func BenchmarkListOld(b *testing.B) {
	const keys = 20_000
	for name, changed := range map[string]int64{"one key 20000 times": 1, "each key once": keys} {
		b.Run(name, func(b *testing.B) {
			s := openStore(b, mvcc.Options{})
			kvtest.Fill(b, s, keys)
			kvtest.Each(b, 128, keys, func(i int64) error {
				put := &kv.PutOp{Key: kvtest.LoadKey(i%changed + 1), Value: kvtest.LoadValue(i)}
				_, err := s.Txn(b.Context(), kv.TxnRequest{Then: []kv.Op{{Put: put}}})
				return err
			})
			for b.Loop() {
				res, err := s.Range(b.Context(), kv.RangeRequest{Span: kv.Prefix([]byte("/registry/")), Revision: keys + 1})
				if err != nil || len(res.KVs) != keys {
					b.Fatal(len(res.KVs), err)
				}
			}
		})
	}
}

// BenchmarkWatched creates keys with many open watches; one of them watches each changed
// key.
func BenchmarkWatched(b *testing.B) {
	for _, watches := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("watches=%d", watches), func(b *testing.B) {
			s := openStore(b, mvcc.Options{})
			for i := range int64(watches) {
				req := kv.WatchRequest{Span: kv.Prefix(fmt.Appendf(nil, "/registry/configmaps/%d/", i))}
				if i%2 == 1 {
					req.Span = kv.Span{Start: kvtest.LoadKey(i)}
				}
				w, err := s.Watch(b.Context(), req)
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					for range w.Responses() {
					}
				}()
			}
			kvtest.Clients(b, 64, func(i int64) error { return kvtest.Create(b.Context(), s, i) })
		})
	}
}
