package plancontroller

import (
	"testing"
	"time"
)

func TestRateEstimator(t *testing.T) {
	var p rateEstimator
	start := time.Unix(0, 0)
	p.progress(start, 0, 1000)
	got := p.progress(start.Add(30*time.Second), 100, 1000)
	if got.PerMinute != 200 || got.Remaining == nil || got.Remaining.Duration != 270*time.Second {
		t.Errorf("got %+v", got)
	}
}
