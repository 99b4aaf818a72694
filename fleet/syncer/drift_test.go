package syncer

import (
	"testing"
	"time"
)

// TestDriftIsMetMoreSlowly: a controller that always changes the object back is
// corrected a bounded number of times, and a person at once.
func TestDriftIsMetMoreSlowly(t *testing.T) {
	var d drift
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	corrections := 0
	for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(100 * time.Millisecond) {
		if d.pause(now) == 0 {
			d.corrected(now)
			corrections++
		}
	}
	if corrections < free || corrections > 20 {
		t.Errorf("%d corrections in ten minutes of fighting, want a few", corrections)
	}
	now = now.Add(calm + time.Minute)
	if p := d.pause(now); p != 0 {
		t.Errorf("after a calm, the next correction waits %s", p)
	}
}
