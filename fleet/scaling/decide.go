package scaling

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Decision is what a ScaleSchedule needs at a time.
type Decision struct {
	// Status is the status with everything that passed without a run: new and changed rules, missed
	// times, and runs that were given up. Its condition is unchanged.
	Status v1alpha1.ScaleScheduleStatus
	// Ended are the rules whose runs were given up or missed, with their results in Status.
	Ended []string
	// Set is what a run sets, and Rules the names of its rules. Without rules, there is nothing to do.
	// Begun reports whether the run is recorded in Status already; otherwise Begin records it.
	Set   v1alpha1.ScaleValues
	Rules []string
	Begun bool
	// Next is when to decide again, or zero.
	Next time.Time

	due []due
	// winners are the rules that a later one does not override in all fields.
	winners map[int]bool
}

// due is a time of a rule that has not been handled.
type due struct {
	rule int
	at   time.Time
}

// Decide decides about a ScaleSchedule at a time. While a run has not ended, no other begins.
func (s *Schedule) Decide(of *v1alpha1.ScaleSchedule, now time.Time) *Decision {
	d := &Decision{Status: *of.Status.DeepCopy()}
	first := of.Status.ObservedGeneration == 0 && of.Generation <= 1
	d.Status.ObservedGeneration = of.Generation
	d.Status.NextScheduleTime, d.Status.NextRule = nil, ""
	before := d.Status.Rules
	d.Status.Rules = make([]v1alpha1.ScaleRuleStatus, 0, len(s.rules))
	var running []due
	for i := range s.rules {
		r := &s.rules[i]
		st := v1alpha1.ScaleRuleStatus{Name: r.Name}
		if j := slices.IndexFunc(before, func(b v1alpha1.ScaleRuleStatus) bool { return b.Name == r.Name }); j >= 0 {
			st = before[j]
		}
		if st.Definition != r.definition || r.suspended {
			st.ActiveSince = nil
		}
		st.Definition, st.NextScheduleTime = r.definition, nil
		if st.LastResult == v1alpha1.ScaleRunning {
			if at, runs := d.pending(of, r, &st, now); runs {
				running = append(running, due{i, at})
			}
		}
		if !r.suspended {
			d.advance(of, i, r, &st, first, now)
		}
		d.Status.Rules = append(d.Status.Rules, st)
	}
	if len(running) > 0 {
		d.due, d.Begun = running, true
	} else {
		d.Status.Run = nil
	}
	d.fold(s)
	return d
}

// pending returns the time of a run that has begun, and whether it goes on. Otherwise it ends it.
func (d *Decision) pending(of *v1alpha1.ScaleSchedule, r *rule, st *v1alpha1.ScaleRuleStatus, now time.Time) (time.Time, bool) {
	run := of.Status.Run
	switch {
	case run == nil || st.LastScheduleTime == nil || run.Generation != of.Generation:
		d.end(st, v1alpha1.ScaleSuperseded, "the schedule was changed before the run succeeded")
	case r.deadline(st.LastScheduleTime.Time).Before(now):
		d.end(st, v1alpha1.ScaleMissed, "the run did not succeed within startingDeadlineSeconds. "+st.Message)
	default:
		return st.LastScheduleTime.Time, true
	}
	return time.Time{}, false
}

func (d *Decision) end(st *v1alpha1.ScaleRuleStatus, result v1alpha1.ScaleResult, message string) {
	st.LastResult, st.Message = result, short(message)
	d.Ended = append(d.Ended, st.Name)
}

// advance finds the time of an active rule that is due, and its next one.
func (d *Decision) advance(of *v1alpha1.ScaleSchedule, i int, r *rule, st *v1alpha1.ScaleRuleStatus, first bool, now time.Time) {
	if st.ActiveSince == nil {
		since := metav1.NewTime(now).Rfc3339Copy()
		if first && of.CreationTimestamp.Time.Before(now) {
			since = of.CreationTimestamp
		}
		st.ActiveSince = &since
	}
	handled := st.ActiveSince.Time
	if last := st.LastScheduleTime; last != nil && last.After(handled) {
		handled = last.Time
	}
	if at := r.latest(handled, now); !at.IsZero() {
		if r.deadline(at).Before(now) {
			last := metav1.NewTime(at)
			if st.LastResult != v1alpha1.ScaleRunning { // a run that goes on is reported first
				st.LastScheduleTime = &last
				d.end(st, v1alpha1.ScaleMissed, "the run could not begin within startingDeadlineSeconds")
			}
		} else {
			d.due = append(d.due, due{i, at})
		}
	}
	if handled.Before(now) {
		handled = now
	}
	next := r.next(handled)
	if next.IsZero() {
		return
	}
	at := metav1.NewTime(next)
	st.NextScheduleTime = &at
	if d.Next.IsZero() || next.Before(d.Next) {
		d.Next = next
	}
	if d.Next.Equal(next) { // of several, the last one wins
		d.Status.NextScheduleTime, d.Status.NextRule = &at, st.Name
	}
}

// fold computes what the due rules set together: by time, then by the order of the spec, the last one
// wins for each field.
func (d *Decision) fold(s *Schedule) {
	slices.SortStableFunc(d.due, func(a, b due) int { return a.at.Compare(b.at) })
	var by [3]int
	for _, x := range d.due {
		v := ValuesOf(&s.rules[x.rule].ScaleRule)
		for f, p := range fields(&v) {
			if *p != nil {
				*fields(&d.Set)[f], by[f] = *p, x.rule
			}
		}
	}
	d.winners = map[int]bool{}
	for f, p := range fields(&d.Set) {
		if *p != nil {
			d.winners[by[f]] = true
		}
	}
	for _, x := range d.due {
		if d.winners[x.rule] {
			d.Rules = append(d.Rules, s.rules[x.rule].Name)
		}
	}
}

// Begin returns the status with the run recorded as begun. It must be stored, at exactly the version
// that was decided about, before the target is written: then no other server begins the same run.
func (d *Decision) Begin(generation int64, previous v1alpha1.ScaleValues) v1alpha1.ScaleScheduleStatus {
	out := *d.Status.DeepCopy()
	out.Run = &v1alpha1.ScaleRun{Generation: generation, Previous: Only(previous, d.Set)}
	for _, x := range d.due {
		st := &out.Rules[x.rule]
		at := metav1.NewTime(x.at)
		st.LastScheduleTime, st.LastResult, st.Message = &at, v1alpha1.ScaleRunning, ""
		if !d.winners[x.rule] {
			st.LastResult, st.Message = v1alpha1.ScaleSuperseded, short(fmt.Sprintf("rule %s was due at the same time or later, and sets the same", d.Rules[len(d.Rules)-1]))
		}
	}
	return out
}

// End returns a status in which the run has ended.
func End(status v1alpha1.ScaleScheduleStatus, result v1alpha1.ScaleResult, message string, now time.Time) v1alpha1.ScaleScheduleStatus {
	out := *status.DeepCopy()
	out.Run = nil
	for i := range out.Rules {
		st := &out.Rules[i]
		if st.LastResult != v1alpha1.ScaleRunning {
			continue
		}
		st.LastResult, st.Message = result, short(message)
		if result == v1alpha1.ScaleSucceeded {
			at := metav1.NewTime(now).Rfc3339Copy()
			st.LastSuccessfulTime = &at
		}
	}
	return out
}

// Explain returns a status whose run goes on, with a message.
func Explain(status v1alpha1.ScaleScheduleStatus, message string) v1alpha1.ScaleScheduleStatus {
	out := *status.DeepCopy()
	for i := range out.Rules {
		if out.Rules[i].LastResult == v1alpha1.ScaleRunning {
			out.Rules[i].Message = short(message)
		}
	}
	return out
}

// short bounds a message as the API does.
func short(message string) string {
	const longest = 1024
	if r := []rune(message); len(r) > longest {
		return string(r[:longest-1]) + "…"
	}
	return message
}
