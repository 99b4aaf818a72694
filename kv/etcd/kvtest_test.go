package etcd_test

import (
	"flag"
	"testing"

	"github.com/atoll-dev/atoll/kv/kvtest"
)

var (
	firstSeed  = flag.Uint64("seed", 1, "first seed of random tests")
	seedCount  = flag.Uint64("runs", 3, "number of seeds to test")
	operations = flag.Int("operations", 600, "operations for each seed")
)

// keyspaces are the keyspaces that the suites test, the reference first.
func keyspaces() []struct {
	name string
	open kvtest.Open
} {
	return []struct {
		name string
		open kvtest.Open
	}{
		{"etcd", openReferee},
		{"atoll", openAtoll},
		{"atoll over gRPC", openServed},
		{"atoll in process", openInProcess},
		{"atoll with rules", openRestricted},
	}
}

func TestRandom(t *testing.T) {
	for _, ks := range keyspaces() {
		t.Run(ks.name, func(t *testing.T) {
			t.Parallel()
			for i := range *seedCount {
				kvtest.Random(t, *firstSeed+i, *operations, ks.open)
			}
		})
	}
}

func TestConformance(t *testing.T) {
	for _, ks := range keyspaces() {
		t.Run(ks.name, func(t *testing.T) {
			t.Parallel()
			kvtest.Run(t, ks.open)
		})
	}
}

func TestConcurrent(t *testing.T) {
	for _, ks := range keyspaces() {
		t.Run(ks.name, func(t *testing.T) {
			t.Parallel()
			for i := range *seedCount {
				kvtest.Concurrent(t, *firstSeed+i, 16, 60, ks.open)
			}
		})
	}
}
