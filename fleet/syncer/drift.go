package syncer

import "time"

// drift rate-limits the corrections of one object. A manual change is corrected at once. A
// controller that reverts every correction is corrected at growing intervals, so that the two
// do not spin.
type drift struct {
	lastCorrection time.Time
	corrections    int
}

const (
	// freeCorrections is the number of consecutive corrections without a pause.
	freeCorrections = 3
	// driftReset is how long the object must stay unchanged for the count to start at zero
	// again.
	driftReset = 5 * time.Minute
)

// delay returns how long to wait before the next correction; 0 means correct now.
func (d *drift) delay(now time.Time) time.Duration {
	if now.Sub(d.lastCorrection) > driftReset {
		d.corrections = 0
	}
	if d.corrections < freeCorrections {
		return 0
	}
	return max(0, d.lastCorrection.Add(d.backoff()).Sub(now))
}

// backoff is the pause after the last correction.
func (d *drift) backoff() time.Duration { return time.Second << min(d.corrections-freeCorrections, 6) }

// contestedUntil returns when the object no longer counts as contested: after twice the pause
// that followed the last correction. A manager that still reverts it does so within the first
// half.
func (d *drift) contestedUntil() time.Time {
	if d.corrections < freeCorrections {
		return time.Time{}
	}
	return d.lastCorrection.Add(2 * d.backoff())
}

// isContested reports whether the next correction makes the object contested.
func (d *drift) isContested() bool { return d.corrections >= freeCorrections-1 }

func (d *drift) corrected(now time.Time) {
	d.lastCorrection = now
	d.corrections++
}
