package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

const benchValue = 1024

// benchKey looks like a key of the API server.
func benchKey(i int64) []byte {
	return fmt.Appendf(nil, "/registry/configmaps/namespace-%d/object-%08d", i%16, i)
}

// value looks like an object's: partly the same everywhere, partly not.
func value(i int64) []byte {
	v := make([]byte, benchValue)
	x := uint64(i)*0x9e3779b97f4a7c15 + 1
	for j := range v {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		v[j] = byte(x)
	}
	return v
}

// clients runs b.N calls of f from n goroutines.
func clients(b *testing.B, n int, f func(i int64) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

func create(k *mvcc.Keyspace, i int64) error {
	key := benchKey(i)
	res, err := k.Txn(context.Background(), kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value(i)}}},
	})
	if err == nil && !res.Succeeded {
		err = fmt.Errorf("key %s exists", key)
	}
	return err
}

func fill(b testing.TB, k *mvcc.Keyspace, n int64) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 128 {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if err := create(k, i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func perClients(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) { f(b, n) })
	}
}

func BenchmarkCreate(b *testing.B) {
	perClients(b, func(b *testing.B, n int) {
		k := openStore(b, openTest(b), mvcc.Options{})
		clients(b, n, func(i int64) error { return create(k, i) })
	})
}

// BenchmarkUpdate is what the API server does: compare, put, and a watch that
// wants previous values.
func BenchmarkUpdate(b *testing.B) {
	const keys = 10_000
	perClients(b, func(b *testing.B, n int) {
		k := openStore(b, openTest(b), mvcc.Options{})
		fill(b, k, keys)
		w, err := k.Watch(b.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("/registry/")), PrevKV: true})
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			for range w.Responses() {
			}
		}()
		revs := make([]kv.Revision, keys)
		busy := make([]sync.Mutex, keys)
		clients(b, n, func(i int64) error {
			slot := (i * 7919) % keys
			busy[slot].Lock()
			defer busy[slot].Unlock()
			key := benchKey(slot + 1)
			cmp := kv.Compare{Span: kv.Span{Start: key}, Target: kv.CompareMod, Int: revs[slot]}
			if revs[slot] == 0 {
				cmp.Op = kv.Greater
			}
			res, err := k.Txn(context.Background(), kv.TxnRequest{
				If:   []kv.Compare{cmp},
				Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value(i)}}},
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

func BenchmarkGet(b *testing.B) {
	const keys = 10_000
	k := openStore(b, openTest(b), mvcc.Options{CacheBytes: -1})
	fill(b, k, keys)
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			clients(b, n, func(i int64) error {
				res, err := k.Range(context.Background(), kv.RangeRequest{Span: kv.Span{Start: benchKey(i*7919%keys + 1)}})
				if err == nil && len(res.KVs) != 1 {
					err = fmt.Errorf("%d keys", len(res.KVs))
				}
				return err
			})
		})
	}
}

// BenchmarkList reads 20,000 keys in pages of 500, all at one revision.
func BenchmarkList(b *testing.B) {
	const keys = 20_000
	k := openStore(b, openTest(b), mvcc.Options{})
	fill(b, k, keys)
	for b.Loop() {
		req := kv.RangeRequest{Span: kv.Prefix([]byte("/registry/")), Limit: 500}
		for n, more := 0, true; more; {
			res, err := k.Range(context.Background(), req)
			if err != nil {
				b.Fatal(err)
			}
			n += len(res.KVs)
			if more = res.More; !more {
				if n != keys {
					b.Fatal(n)
				}
				break
			}
			req.Revision = res.Revision
			req.Start = append(append([]byte(nil), res.KVs[len(res.KVs)-1].Key...), 0)
		}
	}
}

// BenchmarkDistant creates with 20 ms more in every round trip to the database.
func BenchmarkDistant(b *testing.B) {
	perClients(b, func(b *testing.B, n int) {
		s := server(b)
		p := proxy(b, s, 1)
		k := openStore(b, openURL(b, through(b, p, s, "distant"), schemaOf(b)), mvcc.Options{})
		p.Set(pgproxy.Faults{ToServer: 10 * time.Millisecond, ToClient: 10 * time.Millisecond})
		clients(b, n, func(i int64) error { return create(k, i) })
	})
}

// BenchmarkSweeping updates while history is forgotten all the time, and tells
// how much slower that is than without, and what a key takes on disk.
func BenchmarkSweeping(b *testing.B) {
	const keys = 10_000
	for _, sweep := range []bool{false, true} {
		b.Run(fmt.Sprintf("sweep=%v", sweep), func(b *testing.B) {
			db := openTest(b)
			k := openStore(b, db, mvcc.Options{})
			fill(b, k, keys)
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			if sweep {
				wg.Go(func() {
					for ctx.Err() == nil {
						if st, err := k.Status(ctx); err == nil {
							k.Compact(ctx, st.Revision, true)
						}
					}
				})
			}
			clients(b, 64, func(i int64) error {
				_, err := k.Txn(context.Background(), kv.TxnRequest{
					Then: []kv.Op{{Put: &kv.PutOp{Key: benchKey(i*7919%keys + 1), Value: value(i)}}},
				})
				return err
			})
			cancel()
			wg.Wait()
			total, _, err := db.Size(b.Context())
			if err != nil {
				b.Error(err)
			}
			b.ReportMetric(float64(total)/keys, "bytes/key")
		})
	}
}
