package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/kv/kvtest"
)

// TestHistory compares the result of History, which is computed from IDs, with the actual
// rows.
func TestHistory(t *testing.T) {
	table := openTable(t, openTest(t), "default")
	kvtest.History(t, table, func(pairs ...string) { write(t, table, pairs...) })
}
