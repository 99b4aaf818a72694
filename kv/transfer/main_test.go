package transfer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
	"github.com/atoll-dev/atoll/kv/transfer"
)

// store is a keyspace in its own database, with the layers below it.
type store struct {
	*mvcc.Keyspace
	path  string
	db    *sqlite.DB
	table kv.Table
}

func open(t testing.TB) *store { return openWith(t, 0, mvcc.Options{}) }

// openWith raises the keyspace to a revision, if that is not 0.
func openWith(t testing.TB, to kv.Revision, opts mvcc.Options) *store {
	t.Helper()
	s := &store{path: filepath.Join(t.TempDir(), "kv.db")}
	var err error
	if s.db, err = sqlite.Open(s.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	if s.table, err = s.db.Open(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if to > 0 {
		if err := transfer.Raise(t.Context(), s.table, to); err != nil {
			t.Fatal(err)
		}
	}
	s.start(t, opts)
	return s
}

// start opens the engine.
func (s *store) start(t testing.TB, opts mvcc.Options) {
	t.Helper()
	k, err := mvcc.Open(t.Context(), s.table, s.db, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	s.Keyspace = k
}

func putOp(key, value string, lease kv.LeaseID) kv.Op {
	return kv.Op{Put: &kv.PutOp{Key: []byte(key), Value: []byte(value), Lease: lease}}
}

func delOp(key string) kv.Op {
	return kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte(key)}}}
}

func (s *store) do(t testing.TB, op kv.Op) (kv.Revision, error) {
	res, err := s.Txn(context.WithoutCancel(t.Context()), kv.TxnRequest{Then: []kv.Op{op}})
	if err != nil {
		return 0, err
	}
	return res.Revision, nil
}

func (s *store) put(t testing.TB, key, value string, lease kv.LeaseID) kv.Revision {
	t.Helper()
	rev, err := s.do(t, putOp(key, value, lease))
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func (s *store) del(t testing.TB, key string) {
	t.Helper()
	if _, err := s.do(t, delOp(key)); err != nil {
		t.Fatal(err)
	}
}

// fill creates keys of all sizes, some with leases, and history.
func fill(t testing.TB, s *store, n int) {
	t.Helper()
	for id := range int64(3) {
		if _, err := s.Grant(t.Context(), 100+id, time.Duration(600+id)*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	// Concurrently, to share commits: each write still makes its own revision.
	const writers, block = 16, 7
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for from := w * block; from < n; from += writers * block {
				for i := from; i < min(from+block, n); i++ {
					lease := int64(0)
					if i%10 == 0 {
						lease = 100 + int64(i/10%3)
					}
					if _, err := s.do(t, putOp(fmt.Sprintf("key/%05d", i), strings.Repeat("x", r.IntN(3000)), lease)); err != nil {
						t.Error(err)
					}
					if i != from+3 {
						continue
					}
					if _, err := s.do(t, delOp(fmt.Sprintf("key/%05d", i-1))); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	s.put(t, "\xff\x00binary", "\x00\xff", 0)
	s.put(t, "empty", "", 0)
	s.put(t, "large", strings.Repeat("l", 1_400_000), 0)
}

func state(t testing.TB, s kv.Keyspace) map[string]string {
	t.Helper()
	res, err := s.Range(context.WithoutCancel(t.Context()), kv.RangeRequest{Span: kv.Prefix(nil)})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range res.KVs {
		out[string(e.Key)] = fmt.Sprintf("%d %s", e.Lease, e.Value)
	}
	return out
}

func same(t testing.TB, a, b kv.Keyspace) {
	t.Helper()
	x, y := state(t, a), state(t, b)
	if len(x) != len(y) {
		t.Fatalf("%d keys in the source, %d in the target", len(x), len(y))
	}
	for k, v := range x {
		if y[k] != v {
			t.Errorf("key %q differs", k)
		}
	}
}

func verified(t testing.TB, src transfer.SourceReader, at kv.Revision, dst kv.Keyspace, opts transfer.Options) *transfer.Comparison {
	t.Helper()
	got, err := transfer.Verify(t.Context(), src, at, dst, opts)
	if err != nil || got.Different != 0 {
		t.Fatalf("verify: %+v, %v", got, err)
	}
	return got
}
