package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	kvtest.Run(t, func(t testing.TB) kv.Keyspace { return openStore(t, openTest(t), mvcc.Options{}) })
}

func TestRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*seeds) {
		kvtest.Random(t, seed, 1000, func(t testing.TB) kv.Keyspace { return openStore(t, openTest(t), mvcc.Options{}) })
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*seeds) {
		kvtest.Concurrent(t, seed, 16, 100, func(t testing.TB) kv.Keyspace { return openStore(t, openTest(t), mvcc.Options{}) })
	}
}
