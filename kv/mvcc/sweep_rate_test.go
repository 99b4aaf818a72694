package mvcc

import (
	"testing"
	"time"
)

// TestPace: sweeping holds back at first, and in the end takes more rows than
// clients write, so that it cannot fall behind for ever.
func TestPace(t *testing.T) {
	share := func(busy time.Duration) float64 {
		rows, rest := pace(busy, rowsPerSweep)
		return float64(rows) / float64(rest)
	}
	if got := share(0); got > 0.051 || got < 0.049 {
		t.Errorf("at first it takes %.3f of the rows written", got)
	}
	before := 0.0
	for busy := time.Duration(0); busy < 2*fullEffort; busy += fullEffort / 7 {
		now := share(busy)
		if now < before*0.99 { // rows are whole
			t.Errorf("after %s it takes less (%.3f) than before (%.3f)", busy, now, before)
		}
		before = now
	}
	if before <= 1 {
		t.Errorf("in the end it takes only %.3f of the rows written", before)
	}
}
