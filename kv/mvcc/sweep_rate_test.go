package mvcc

import (
	"testing"
	"time"
)

// TestSweepRate checks that sweeping is throttled at first, and later removes more rows
// than clients write, so that it cannot fall behind forever.
func TestSweepRate(t *testing.T) {
	share := func(busy time.Duration) float64 {
		rows, rest := sweepRate(busy, rowsPerSweep)
		return float64(rows) / float64(rest)
	}
	if got := share(0); got > 0.051 || got < 0.049 {
		t.Errorf("the initial share is %.3f of the rows written", got)
	}
	before := 0.0
	for busy := time.Duration(0); busy < 2*fullEffort; busy += fullEffort / 7 {
		now := share(busy)
		if now < before*0.99 { // rows are integers
			t.Errorf("after %s the share is smaller (%.3f) than before (%.3f)", busy, now, before)
		}
		before = now
	}
	if before <= 1 {
		t.Errorf("the final share is only %.3f of the rows written", before)
	}
}
