package plans

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// window is a time that comes again and again.
type window struct {
	schedule cron.Schedule
	in       *time.Location
	open     time.Duration
}

// readWindow reads one as a CronJob's schedule is read. An error begins with the name of the field.
func readWindow(w v1alpha1.SyncWindow) (*window, error) {
	if strings.Contains(w.Schedule, "TZ=") {
		return nil, errors.New("schedule: a time zone stands in timeZone, not in the schedule")
	}
	if strings.HasPrefix(strings.TrimSpace(w.Schedule), "@every") {
		return nil, errors.New("schedule: @every has no beginning: write at which minutes and hours the window opens, such as 0 22 * * 1-5")
	}
	schedule, err := cron.ParseStandard(w.Schedule)
	if err != nil {
		return nil, fmt.Errorf("schedule: %q is not minute, hour, day of month, month, day of week: %w", w.Schedule, err)
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil || w.TimeZone == "Local" {
		return nil, fmt.Errorf("timeZone: there is no time zone %q: write one such as Europe/Berlin", w.TimeZone)
	}
	if w.Duration.Duration <= 0 {
		return nil, errors.New("duration: a window has to stay open for some time: write one such as 2h")
	}
	return &window{schedule: schedule, in: zone, open: w.Duration.Duration}, nil
}

// at tells whether the window is open, and when it opens next, which is zero if it never does.
func (w *window) at(now time.Time) (open bool, next time.Time) {
	// What opened at or before now, and not longer ago than it stays open.
	began := w.schedule.Next(now.In(w.in).Add(-w.open))
	if !began.IsZero() && !began.After(now) {
		return true, now
	}
	return false, w.schedule.Next(now.In(w.in))
}

// opens tells whether a policy lets applies begin now, and otherwise when it does next. Windows that cannot be read
// never open.
func (p *policy) opens(now time.Time) (open bool, next time.Time) {
	if p == nil || p.spec.Mode != v1alpha1.SyncAuto || len(p.spec.Windows) == 0 {
		return true, now
	}
	for _, spec := range p.spec.Windows {
		w, err := readWindow(spec)
		if err != nil {
			continue
		}
		isOpen, at := w.at(now)
		if isOpen {
			return true, now
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return false, next
}
