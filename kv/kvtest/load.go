package kvtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// LoadKey returns key number i of benchmarks, which looks like one of the API server's.
func LoadKey(i int64) []byte {
	return fmt.Appendf(nil, "/registry/configmaps/namespace-%d/object-%08d", i%16, i)
}

// loadSpan contains all of them.
func loadSpan() kv.Span { return kv.Prefix([]byte("/registry/")) }

// LoadValue returns an incompressible value of 1 KiB.
func LoadValue(i int64) []byte {
	v := make([]byte, 1024)
	x := uint64(i)*0x9e3779b97f4a7c15 + 1
	for j := range v {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		v[j] = byte(x)
	}
	return v
}

// Create puts key number i like the API server creates objects.
func Create(ctx context.Context, ks kv.Keyspace, i int64) error {
	key := LoadKey(i)
	res, err := ks.Txn(ctx, kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: LoadValue(i)}}},
	})
	if err == nil && !res.Succeeded {
		err = fmt.Errorf("key %s exists", key)
	}
	return err
}

// Each calls f with 1 to n from the given number of goroutines.
func Each(t testing.TB, clients int, n int64, f func(i int64) error) {
	t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if err := f(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Fill creates keys 1 to n.
func Fill(t testing.TB, ks kv.Keyspace, n int64) {
	t.Helper()
	Each(t, 128, n, func(i int64) error { return Create(context.WithoutCancel(t.Context()), ks, i) })
}

// Clients measures b.N calls of f from n goroutines.
func Clients(b *testing.B, n int, f func(i int64) error) {
	b.Helper()
	b.ResetTimer()
	Each(b, n, int64(b.N), f)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// PerClients runs a benchmark with 1, 64 and 256 clients.
func PerClients(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) { f(b, n) })
	}
}

// BenchmarkCreate creates keys.
func BenchmarkCreate(b *testing.B, open Open) {
	PerClients(b, func(b *testing.B, n int) {
		ks := open(b)
		Clients(b, n, func(i int64) error { return Create(b.Context(), ks, i) })
	})
}

// drain reads a watch of everything with previous values, like the API server's watches.
func drain(b *testing.B, ks kv.Keyspace) {
	b.Helper()
	w, err := ks.Watch(b.Context(), kv.WatchRequest{Span: loadSpan(), PrevKV: true})
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for range w.Responses() {
		}
	}()
}

// scattered returns a key below n, far from the last one.
func scattered(i, n int64) int64 { return i * 7919 % n }

// BenchmarkUpdate makes the API server's requests: compare, put, and a watch with previous
// values.
func BenchmarkUpdate(b *testing.B, open Open) {
	const keys = 10_000
	PerClients(b, func(b *testing.B, n int) {
		ks := open(b)
		Fill(b, ks, keys)
		drain(b, ks)
		revs := make([]kv.Revision, keys)
		busy := make([]sync.Mutex, keys)
		Clients(b, n, func(i int64) error {
			slot := scattered(i, keys)
			busy[slot].Lock()
			defer busy[slot].Unlock()
			key := LoadKey(slot + 1)
			cmp := kv.Compare{Span: kv.Span{Start: key}, Target: kv.CompareMod, Int: revs[slot]}
			if revs[slot] == 0 {
				cmp.Op = kv.Greater
			}
			res, err := ks.Txn(b.Context(), kv.TxnRequest{
				If:   []kv.Compare{cmp},
				Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: LoadValue(i)}}},
				Else: []kv.Op{{Range: &kv.RangeRequest{Span: kv.Span{Start: key}}}},
			})
			if err == nil && !res.Succeeded {
				err = fmt.Errorf("key %s has changed", key)
			}
			if err == nil {
				revs[slot] = res.Revision
			}
			return err
		})
	})
}

// BenchmarkGet reads single keys.
func BenchmarkGet(b *testing.B, open Open) {
	const keys = 10_000
	ks := open(b)
	Fill(b, ks, keys)
	PerClients(b, func(b *testing.B, n int) {
		Clients(b, n, func(i int64) error {
			res, err := ks.Range(b.Context(), kv.RangeRequest{Span: kv.Span{Start: LoadKey(scattered(i, keys) + 1)}})
			if err == nil && len(res.KVs) != 1 {
				err = fmt.Errorf("%d keys", len(res.KVs))
			}
			return err
		})
	})
}

// BenchmarkList reads 20,000 keys in pages of 500, all at one revision.
func BenchmarkList(b *testing.B, open Open) {
	const keys = 20_000
	ks := open(b)
	Fill(b, ks, keys)
	for b.Loop() {
		req := kv.RangeRequest{Span: loadSpan(), Limit: 500}
		n := 0
		for more := true; more; {
			res, err := ks.Range(b.Context(), req)
			if err != nil {
				b.Fatal(err)
			}
			n += len(res.KVs)
			if more = res.More; more {
				req.Revision = res.Revision
				req.Start = append(append([]byte(nil), res.KVs[len(res.KVs)-1].Key...), 0)
			}
		}
		if n != keys {
			b.Fatal(n)
		}
	}
}

// BenchmarkSweeping updates during continuous compaction, and reports the slowdown compared
// to no compaction. done is called with the number of keys after each.
func BenchmarkSweeping(b *testing.B, open Open, done func(b *testing.B, keys int)) {
	const keys = 10_000
	for _, sweep := range []bool{false, true} {
		b.Run(fmt.Sprintf("sweep=%v", sweep), func(b *testing.B) {
			ks := open(b)
			Fill(b, ks, keys)
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			if sweep {
				wg.Go(func() {
					for ctx.Err() == nil {
						if st, err := ks.Status(ctx); err == nil {
							_, _ = ks.Compact(ctx, st.Revision, true)
						}
					}
				})
			}
			Clients(b, 64, func(i int64) error {
				put := &kv.PutOp{Key: LoadKey(scattered(i, keys) + 1), Value: LoadValue(i)}
				_, err := ks.Txn(b.Context(), kv.TxnRequest{Then: []kv.Op{{Put: put}}})
				return err
			})
			cancel()
			wg.Wait()
			if done != nil {
				done(b, keys)
			}
		})
	}
}
