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
	wait := time.Second << min(d.times-free, 6)
	return max(0, d.last.Add(wait).Sub(now))
}

func (d *drift) corrected(now time.Time) {
	d.last = now
	d.times++
}
