// Package store tests what `atoll server` and `atoll kv serve` store, as real processes: they are
// killed and frozen while clients write and watch, and their database fails over to a standby.
// Nothing that was acknowledged may be lost, and no watcher may miss or repeat an event.
//
// The tests need no member cluster, so they do not wait for the system that package test starts.
package store

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/system"
	"github.com/atoll-dev/atoll/test/programs"
)

func TestMain(m *testing.M) {
	programs.Main(system.Roles())
	os.Exit(m.Run())
}

// eventually polls until check returns nil.
func eventually(t *testing.T, limit time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	programs.Eventually(t, limit, what, check)
}
