// Package kvtest holds keyspaces to the contract of package kv: a conformance
// suite (Run), random operations compared with a simple Model (Random), and
// many clients at once whose history is checked afterwards (Concurrent).
//
// It runs against every implementation and against a real etcd. Where the two
// differ, etcd is right.
package kvtest

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// Open makes a fresh, empty keyspace for a test, to be closed by the test's
// Cleanup. It may be called by several goroutines at once.
type Open func(t testing.TB) kv.Keyspace
