package approval

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// window is a recurring period in which applies may begin.
type window struct {
	schedule cron.Schedule
	in       *time.Location
	open     time.Duration
}

// parseWindow parses a window; its schedule has a CronJob's syntax. An error begins with the name of the
// field.
func parseWindow(w v1alpha1.SyncWindow) (*window, error) {
	if strings.Contains(w.Schedule, "TZ=") {
		return nil, errors.New("schedule: a time zone is not allowed here: set it in timeZone")
	}
	if strings.HasPrefix(strings.TrimSpace(w.Schedule), "@every") {
		return nil, errors.New("schedule: @every has no fixed start: write the minutes and hours at which the window opens, such as 0 22 * * 1-5")
	}
	schedule, err := cron.ParseStandard(w.Schedule)
	if err != nil {
		return nil, fmt.Errorf("schedule: %q is not a cron schedule (minute, hour, day of month, month, day of week): %w", w.Schedule, err)
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil || w.TimeZone == "Local" {
		return nil, fmt.Errorf("timeZone: unknown time zone %q: use an IANA name such as Europe/Berlin", w.TimeZone)
	}
	if w.Duration.Duration <= 0 {
		return nil, errors.New("duration: must be positive, such as 2h")
	}
	return &window{schedule: schedule, in: zone, open: w.Duration.Duration}, nil
}

// state reports whether the window is open, and when it opens next. next is zero if it never does.
func (w *window) state(now time.Time) (open bool, next time.Time) {
	// This is the opening that would still last now.
	began := w.schedule.Next(now.In(w.in).Add(-w.open))
	if !began.IsZero() && !began.After(now) {
		return true, now
	}
	return false, w.schedule.Next(now.In(w.in))
}

// windowOpen reports whether a policy lets applies begin now, and otherwise when it does next. Windows that
// cannot be parsed never open.
func (p *Policy) windowOpen(now time.Time) (open bool, next time.Time) {
	if p == nil || p.Spec.Mode != v1alpha1.SyncAuto || len(p.Spec.Windows) == 0 {
		return true, now
	}
	for _, spec := range p.Spec.Windows {
		w, err := parseWindow(spec)
		if err != nil {
			continue
		}
		isOpen, at := w.state(now)
		if isOpen {
			return true, now
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return false, next
}
