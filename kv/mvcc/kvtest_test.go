package mvcc_test

import (
	"flag"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

var seeds = flag.Int("runs", 1, "number of seeds for random tests")

// configs are configurations that must not change any answer.
var configs = []struct {
	name string
	opts mvcc.Options
	db   []sqlite.Option
}{
	{"default", mvcc.Options{}, nil},
	{"no cache", mvcc.Options{CacheBytes: -1}, nil},
	{"tiny cache, one reader", mvcc.Options{CacheBytes: 2000}, []sqlite.Option{sqlite.WithReaders(1), sqlite.WithPageSize(512)}},
}

func TestRandom(t *testing.T) {
	for _, c := range configs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*seeds) {
				kvtest.Random(t, seed, 1000, func(t testing.TB) kv.Keyspace {
					return openStore(t, c.opts, c.db...)
				})
			}
		})
	}
}

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	kvtest.Run(t, func(t testing.TB) kv.Keyspace { return openStore(t, mvcc.Options{}) })
}

func TestConcurrent(t *testing.T) {
	for _, c := range configs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*seeds) {
				kvtest.Concurrent(t, seed, 16, 100, func(t testing.TB) kv.Keyspace {
					return openStore(t, c.opts, c.db...)
				})
			}
		})
	}
}
