package sqlite

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
)

// TestHistory compares the result of History, which is computed from IDs, with the actual
// rows.
func TestHistory(t *testing.T) {
	table := openTable(t, openTest(t), "default").(*table)
	kvtest.History(t, table, func(pairs ...string) { write(t, table, pairs...) })
}

// TestHistoryOfManyCommits checks the part of the count that is computed from IDs; in a
// database with one keyspace it is exact.
func TestHistoryOfManyCommits(t *testing.T) {
	table := openTable(t, openTest(t), "default").(*table)
	for range 10 {
		write(t, table, "a", "1", "b", "2")
	}
	err := table.db.read(t.Context(), "test", func(c *conn) error {
		for exact := range int64(12) {
			for upTo, want := range map[kv.Revision]int64{1: 0, 11: 10, 21: 20, 1000: 20} {
				if n, err := c.changesIn(table.id, 1, upTo, exact+1); err != nil || n != want {
					t.Errorf("up to revision %d, adding up %d commits: %d, %v, want %d", upTo, exact+1, n, err, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
