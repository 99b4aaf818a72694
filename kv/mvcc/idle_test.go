package mvcc_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// TestIdleKeyspaces measures what an open keyspace costs that no client uses, and bounds it:
// a server may have ten thousand of them open.
func TestIdleKeyspaces(t *testing.T) {
	const (
		keyspaces     = 1000
		maxBytes      = 24 << 10 // of heap and stacks
		maxGoroutines = 5
	)
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	open := func(n int) {
		table, err := db.Open(t.Context(), fmt.Sprint("keyspace-", n))
		if err != nil {
			t.Fatal(err)
		}
		k, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
	}
	open(0) // and everything that all of them share
	memory := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	goroutines, before := runtime.NumGoroutine(), memory()
	for n := range keyspaces {
		open(n + 1)
	}
	bytes := (memory() - before) / keyspaces
	count := float64(runtime.NumGoroutine()-goroutines) / keyspaces
	t.Logf("an idle keyspace costs %d bytes and %.1f goroutines", bytes, count)
	if bytes > maxBytes || count > maxGoroutines {
		t.Errorf("an idle keyspace costs %d bytes and %.1f goroutines; at most %d and %d are allowed", bytes, count, maxBytes, maxGoroutines)
	}
}
