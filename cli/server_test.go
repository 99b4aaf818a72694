package cli

import (
	"runtime/debug"
	"testing"
)

// TestGCTuner checks that the heap may grow during large operations, and is limited
// again after the last one.
func TestGCTuner(t *testing.T) {
	percent := func() int {
		now := debug.SetGCPercent(1)
		debug.SetGCPercent(now)
		return now
	}
	defer debug.SetGCPercent(percent())
	want := func(what string, want int) {
		t.Helper()
		if got := percent(); got != want {
			t.Errorf("%s: %d %%", what, got)
		}
	}
	t.Setenv("GOGC", "")
	c := &gcTuner{}
	c.tighten()
	want("initially", normalGCPercent)
	apply := c.relax(true)
	want("one apply running", normalGCPercent)
	one, other := c.relax(false), c.relax(false)
	want("two operations running", relaxedGCPercent)
	one()
	want("one operation running", relaxedGCPercent)
	apply()
	want("apply finished", relaxedGCPercent)
	other()
	want("no operation running", normalGCPercent)

	t.Setenv("GOGC", "80")
	debug.SetGCPercent(80)
	c.tighten()
	over := c.relax(false)
	want("with GOGC, operation running", 80)
	over()
	want("with GOGC", 80)
}
