package mvcc_test

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv/kvtest"
)

// TestUsage uses three engines of one table.
func TestUsage(t *testing.T) {
	for seed := range uint64(*seeds) {
		kvtest.Usage(t, seed, func(t testing.TB) ([]kvtest.Limited, func(context.Context) error) {
			c := openCluster(t, 3, network{poll: 20 * time.Millisecond}, defaults)
			var entries []kvtest.Limited
			for _, e := range c.servers {
				entries = append(entries, e.Keyspace)
			}
			return entries, func(context.Context) error { return nil }
		})
	}
}
