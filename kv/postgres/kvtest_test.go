package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
)

func TestConformance(t *testing.T) {
	t.Parallel() // it waits for leases to expire
	eachDatabase(t, func(t *testing.T, d *database) {
		kvtest.Run(t, func(t testing.TB) kv.Keyspace { return d.store(t) })
	})
}

func TestRandom(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		for seed := range uint64(*seeds) {
			kvtest.Random(t, seed, 600, func(t testing.TB) kv.Keyspace { return d.store(t) })
		}
	})
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		for seed := range uint64(*seeds) {
			kvtest.Concurrent(t, seed, 16, 60, func(t testing.TB) kv.Keyspace { return d.store(t) })
		}
	})
}
