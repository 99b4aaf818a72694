package postgres

import (
	"testing"

	"github.com/atoll-dev/atoll/kv/kvtest"
)

// TestHistory: what History tells from ids is what there is.
func TestHistory(t *testing.T) {
	table := openTable(t, openTest(t), "default")
	kvtest.History(t, table, func(pairs ...string) { write(t, table, pairs...) })
}
