// Package kvtest tests keyspaces against the contract of package kv. It has a conformance
// suite (Run), random operations compared with a simple Model (Random), and many concurrent
// clients whose history is verified afterwards (Concurrent).
//
// It runs against every implementation and against a real etcd. Where the two differ, etcd
// is right.
package kvtest

import (
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// Open creates a new, empty keyspace for a test, and closes it in the test's Cleanup. It is
// safe for concurrent use.
type Open func(t testing.TB) kv.Keyspace
