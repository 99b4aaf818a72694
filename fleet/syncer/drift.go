package syncer

import "time"

// drift rate-limits the corrections of one object. A manual change is corrected at once. A
// controller that reverts every correction is corrected at growing intervals, so that the two
// do not spin.
type drift struct {
	last  time.Time
	times int
}

const (
	// freeCorrections is the number of consecutive corrections without a pause.
	free = 3
	// driftReset is how long the object must stay unchanged for the count to start at zero
	// again.
	calm = 5 * time.Minute
)

// delay returns how long to wait before the next correction; 0 means correct now.
func (d *drift) pause(now time.Time) time.Duration {
	if now.Sub(d.last) > calm {
		d.times = 0
	}
	if d.times < free {
		return 0
	}
	return max(0, d.last.Add(d.wait()).Sub(now))
}

// backoff is the pause after the last correction.
func (d *drift) wait() time.Duration { return time.Second << min(d.times-free, 6) }

// contestedUntil returns when the object no longer counts as contested: after twice the pause
// that followed the last correction. A manager that still reverts it does so within the first
// half.
func (d *drift) contestedUntil() time.Time {
	if d.times < free {
		return time.Time{}
	}
	return d.last.Add(2 * d.wait())
}

// isContested reports whether the next correction makes the object contested.
func (d *drift) persists() bool { return d.times >= free-1 }

func (d *drift) corrected(now time.Time) {
	d.last = now
	d.times++
}
