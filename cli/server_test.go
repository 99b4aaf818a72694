package cli

import (
	"runtime/debug"
	"testing"
)

// TestCollector: memory is spent while anything large is under way, and saved when the last has ended.
func TestCollector(t *testing.T) {
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
	c := &collector{}
	c.save()
	want("at first", eager)
	apply := c.spend(true)
	want("an apply under way", eager)
	one, other := c.spend(false), c.spend(false)
	want("two under way", lavish)
	one()
	want("one under way", lavish)
	apply()
	want("the apply has ended", lavish)
	other()
	want("none any more", eager)

	t.Setenv("GOGC", "80")
	debug.SetGCPercent(80)
	c.save()
	over := c.spend(false)
	want("with GOGC, under way", 80)
	over()
	want("with GOGC", 80)
}
