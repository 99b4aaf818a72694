package mvcc_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

var benchPage = flag.Int("page", 4096, "page size of the databases of benchmarks")

var clientCounts = []int{1, 64, 256}

const benchValue = 1024

// benchKey looks like a key of the API server.
func benchKey(i int64) []byte {
	return fmt.Appendf(nil, "/registry/configmaps/namespace-%d/object-%08d", i%16, i)
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

func value(i int64) []byte {
	v := make([]byte, benchValue)
	copy(v, fmt.Sprint(i))
	return v
}

func (s *store) create(i int64) error {
	key := benchKey(i)
	res, err := s.Txn(context.Background(), kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value(i)}}},
	})
	if err == nil && !res.Succeeded {
		err = fmt.Errorf("key %s exists", key)
	}
	return err
}

func (s *store) fill(n int64) {
	s.t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 128 {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if err := s.create(i); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func perClients(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range clientCounts {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) { f(b, n) })
	}
}

func BenchmarkCreate(b *testing.B) {
	perClients(b, func(b *testing.B, n int) {
		s := openStore(b, mvcc.Options{}, sqlite.WithPageSize(*benchPage))
		clients(b, n, s.create)
	})
}

// BenchmarkUpdate is what the API server does: compare, put, and a watch that
// wants previous values.
func BenchmarkUpdate(b *testing.B) {
	const keys = 10_000
	perClients(b, func(b *testing.B, n int) {
		s := openStore(b, mvcc.Options{}, sqlite.WithPageSize(*benchPage))
		s.fill(keys)
		w, err := s.Watch(b.Context(), kv.WatchRequest{Span: kv.Prefix([]byte("/registry/")), PrevKV: true})
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
			res, err := s.Txn(context.Background(), kv.TxnRequest{
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

func benchGet(b *testing.B, opts mvcc.Options) {
	const keys = 10_000
	s := openStore(b, opts)
	s.fill(keys)
	for _, n := range clientCounts {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			clients(b, n, func(i int64) error {
				res, err := s.Range(context.Background(), kv.RangeRequest{Span: kv.Span{Start: benchKey(i*7919%keys + 1)}})
				if err == nil && len(res.KVs) != 1 {
					err = fmt.Errorf("%d keys", len(res.KVs))
				}
				return err
			})
		})
	}
}

func BenchmarkGet(b *testing.B)         { benchGet(b, mvcc.Options{}) }
func BenchmarkGetUncached(b *testing.B) { benchGet(b, mvcc.Options{CacheBytes: -1}) }

// BenchmarkList reads 20,000 keys in pages of 500, all at one revision.
func BenchmarkList(b *testing.B) {
	const keys = 20_000
	s := openStore(b, mvcc.Options{}, sqlite.WithPageSize(*benchPage))
	s.fill(keys)
	for b.Loop() {
		req := kv.RangeRequest{Span: kv.Prefix([]byte("/registry/")), Limit: 500}
		for n, more := 0, true; more; {
			res, err := s.Range(context.Background(), req)
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

// BenchmarkListOld reads 20,000 keys at a revision since which one key, or
// every key, has changed again and again: it follows the changes back.
func BenchmarkListOld(b *testing.B) {
	const keys = 20_000
	for name, changed := range map[string]int64{"one key 20000 times": 1, "each key once": keys} {
		b.Run(name, func(b *testing.B) {
			s := openStore(b, mvcc.Options{})
			s.fill(keys)
			rev := kv.Revision(keys + 1)
			var next atomic.Int64
			var wg sync.WaitGroup
			for range 128 {
				wg.Go(func() {
					for i := next.Add(1); i <= keys; i = next.Add(1) {
						s.put(string(benchKey(i%changed+1)), string(value(i)))
					}
				})
			}
			wg.Wait()
			for b.Loop() {
				res, err := s.Range(context.Background(), kv.RangeRequest{Span: kv.Prefix([]byte("/registry/")), Revision: rev})
				if err != nil || len(res.KVs) != keys {
					b.Fatal(len(res.KVs), err)
				}
			}
		})
	}
}

// BenchmarkWatched updates with many watches, of which one is on each key
// that changes.
func BenchmarkWatched(b *testing.B) {
	for _, watches := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("watches=%d", watches), func(b *testing.B) {
			s := openStore(b, mvcc.Options{})
			for i := range int64(watches) {
				req := kv.WatchRequest{Span: kv.Prefix(fmt.Appendf(nil, "/registry/configmaps/%d/", i))}
				if i%2 == 1 {
					req.Span = kv.Span{Start: benchKey(i)}
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
			clients(b, 64, s.create)
		})
	}
}

// BenchmarkSweeping updates while history is forgotten all the time, and tells
// how much slower that is than without.
func BenchmarkSweeping(b *testing.B) {
	for _, sweep := range []bool{false, true} {
		b.Run(fmt.Sprintf("sweep=%v", sweep), func(b *testing.B) {
			s := openStore(b, mvcc.Options{})
			s.fill(10_000)
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			if sweep {
				wg.Go(func() {
					for ctx.Err() == nil {
						st, err := s.Status(ctx)
						if err == nil {
							s.Compact(ctx, st.Revision, true)
						}
					}
				})
			}
			clients(b, 64, func(i int64) error {
				_, err := s.Txn(context.Background(), kv.TxnRequest{
					Then: []kv.Op{{Put: &kv.PutOp{Key: benchKey(i*7919%10_000 + 1), Value: value(i)}}},
				})
				return err
			})
			cancel()
			wg.Wait()
		})
	}
}
