// Package scaling decides which rules of a ScaleSchedule are due, and computes their values. It takes
// the time as an argument. DESIGN.md explains why no time is lost or counted twice.
package scaling

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Schedule is a compiled ScaleSchedule.
type Schedule struct{ rules []rule }

// rule is a compiled rule.
type rule struct {
	v1alpha1.ScaleRule
	times cron.Schedule
	zone  *time.Location
	// definition is what the rule's times count for; see ScaleRuleStatus.
	definition string
	suspended  bool
}

// Compile compiles a spec. The errors name its fields.
func Compile(spec *v1alpha1.ScaleScheduleSpec) (*Schedule, field.ErrorList) {
	out := &Schedule{}
	var errs field.ErrorList
	at := field.NewPath("spec")
	zone, err := loadZone(spec.TimeZone)
	if err != nil {
		errs = append(errs, field.Invalid(at.Child("timeZone"), spec.TimeZone, err.Error()))
	}
	target := spec.Target.Kind + "." + spec.Target.APIVersion + "/" + spec.Target.Name
	for i, r := range spec.Rules {
		at := at.Child("rules").Index(i)
		c := rule{ScaleRule: r, zone: zone, suspended: spec.Suspend || r.Suspend}
		if r.TimeZone != "" {
			if c.zone, err = loadZone(r.TimeZone); err != nil {
				errs = append(errs, field.Invalid(at.Child("timeZone"), r.TimeZone, err.Error()))
			}
		}
		if c.times, err = parse(r.Schedule); err != nil {
			errs = append(errs, field.Invalid(at.Child("schedule"), r.Schedule, err.Error()))
		}
		if c.zone != nil {
			c.definition = fmt.Sprintf("%s at %s in %s", target, r.Schedule, c.zone)
		}
		out.rules = append(out.rules, c)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return out, nil
}

func loadZone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name) // an empty name is UTC
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("unknown time zone: use an IANA name such as Europe/Berlin")
	}
	return zone, nil
}

func parse(schedule string) (cron.Schedule, error) {
	if strings.Contains(schedule, "TZ=") {
		return nil, fmt.Errorf("a time zone is not allowed here: set it in timeZone")
	}
	if strings.HasPrefix(strings.TrimSpace(schedule), "@every") {
		return nil, fmt.Errorf("@every has no fixed times: write minutes and hours, such as */30 * * * *")
	}
	times, err := cron.ParseStandard(schedule)
	if err != nil {
		return nil, fmt.Errorf("not a cron schedule (minute, hour, day of month, month, day of week, such as 0 8 * * 1-5): %w", err)
	}
	if times.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, fmt.Errorf("there is no such day: correct the day of month or the month")
	}
	return times, nil
}

// next returns the first time of the rule after another, or zero if it has no time within five years.
func (r *rule) next(after time.Time) time.Time { return r.times.Next(after.In(r.zone)) }

// latest returns the last time of the rule in (after, now], or zero. It looks back in growing steps,
// because a schedule knows only its next time.
func (r *rule) latest(after, now time.Time) time.Time {
	if !after.Before(now) {
		return time.Time{}
	}
	for back := time.Hour; ; back *= 4 {
		from := now.Add(-back)
		if back > 365*24*time.Hour || from.Before(after) {
			from = after
		}
		if t := r.next(from); !t.IsZero() && !t.After(now) {
			for n := r.next(t); n.After(t) && !n.After(now); n = r.next(n) {
				t = n
			}
			return t
		}
		if from.Equal(after) {
			return time.Time{}
		}
	}
}

// deadline returns until when a run at a time may begin and succeed.
func (r *rule) deadline(at time.Time) time.Time {
	seconds := int64(v1alpha1.DefaultScaleDeadlineSeconds)
	if r.StartingDeadlineSeconds != nil {
		seconds = *r.StartingDeadlineSeconds
	}
	return at.Add(time.Duration(seconds) * time.Second)
}

// Upcoming is a time of a rule.
type Upcoming struct {
	Rule *v1alpha1.ScaleRule
	At   time.Time
}

// Upcoming returns the next time after now of each rule that is not suspended, in the order of the spec.
func (s *Schedule) Upcoming(now time.Time) []Upcoming {
	var out []Upcoming
	for i := range s.rules {
		r := &s.rules[i]
		if r.suspended {
			continue
		}
		if at := r.next(now); !at.IsZero() {
			out = append(out, Upcoming{&r.ScaleRule, at})
		}
	}
	return out
}
