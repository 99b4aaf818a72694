package syncer

import "time"

// drift paces corrections of one object. Somebody who changes it by hand is
// corrected at once; a controller that changes it back each time is met ever
// more slowly, so that the two do not spin.
type drift struct {
	last  time.Time
	times int
}

const (
	// free corrections in a row come without a pause.
	free = 3
	// calm is how long there must be no correction for the count to begin anew.
	calm = 5 * time.Minute
)

// pause tells how long to wait before the next correction, 0 for not at all.
func (d *drift) pause(now time.Time) time.Duration {
	if now.Sub(d.last) > calm {
		d.times = 0
	}
	if d.times < free {
		return 0
	}
	return max(0, d.last.Add(d.wait()).Sub(now))
}

// wait is the pause after the last correction.
func (d *drift) wait() time.Duration { return time.Second << min(d.times-free, 6) }

// contestedUntil tells until when somebody counts as fighting back: for twice the
// pause after the last correction. Who changes it again does so during the first half.
func (d *drift) contestedUntil() time.Time {
	if d.times < free {
		return time.Time{}
	}
	return d.last.Add(2 * d.wait())
}

// persists tells whether the next correction makes it a contest.
func (d *drift) persists() bool { return d.times >= free-1 }

func (d *drift) corrected(now time.Time) {
	d.last = now
	d.times++
}
