package scaling

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// world is a target and a stored schedule, with controllers that crash anywhere.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	of    *v1alpha1.ScaleSchedule
	value int32
	// runs counts the writes that changed the target, by rule and time.
	runs map[string]int
	log  []string
}

// reconcile is one reconcile of the controller at a time, which may crash after any of its steps.
func (w *world) reconcile(now time.Time, crashes bool) {
	crash := func() bool { return crashes && w.rng.IntN(4) == 0 }
	s := compile(w.t, &w.of.Spec)
	d := s.Decide(w.of, now)
	if len(d.Rules) == 0 {
		w.of.Status = d.Status
		return
	}
	status, write := d.Status, true
	if d.Begun {
		write = Resume(status.Run, d.Set, v1alpha1.ScaleValues{Replicas: &w.value}) == Write
	} else {
		if crash() {
			return
		}
		status = d.Begin(w.of.Generation, v1alpha1.ScaleValues{Replicas: ptr.To(w.value)})
		w.of.Status = status
	}
	if crash() {
		return
	}
	if write {
		for _, st := range status.Rules {
			if st.LastResult == v1alpha1.ScaleRunning {
				w.runs[st.Name+" "+st.LastScheduleTime.UTC().Format(time.RFC3339)]++
			}
		}
		w.value = *d.Set.Replicas
		w.log = append(w.log, fmt.Sprintf("%s: %v set %d", now.Format(time.RFC3339), d.Rules, w.value))
	}
	if crash() {
		return
	}
	w.of.Status = End(status, v1alpha1.ScaleSucceeded, "", now)
}

// TestEachTimeRunsAtMostOnce: with random schedules, downtimes and crashes, each time is written at
// most once, and afterwards the target has the value of the last time within its deadline.
func TestEachTimeRunsAtMostOnce(t *testing.T) {
	schedules := []string{"0 8 * * *", "*/7 * * * *", "30 2 * * *", "0 */3 * * *", "15,45 1-4 * * *", "0 0 1 * *", "* * * * *", "5 2 * * 0"}
	zones := []string{"", "Europe/Berlin", "America/New_York", "Australia/Adelaide", "Asia/Kolkata"}
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		start := time.Date(2026, time.Month(1+rng.IntN(12)), 1+rng.IntN(28), rng.IntN(24), rng.IntN(60), 0, 0, time.UTC)
		if rng.IntN(2) == 0 {
			start = time.Date(2026, 3, 28, 20, rng.IntN(60), 0, 0, time.UTC) // before a change of the clocks in Berlin
		}
		spec := specOf(zones[rng.IntN(len(zones))])
		for i := range 1 + rng.IntN(4) {
			r := replicas(fmt.Sprint("r", i), schedules[rng.IntN(len(schedules))], int32(i+1))
			if rng.IntN(2) == 0 {
				r.TimeZone = zones[rng.IntN(len(zones))]
			}
			if rng.IntN(2) == 0 {
				r.StartingDeadlineSeconds = ptr.To(int64(10 + rng.IntN(20000)))
			}
			spec.Rules = append(spec.Rules, r)
		}
		w := &world{t: t, rng: rng, value: -1, runs: map[string]int{},
			of: &v1alpha1.ScaleSchedule{ObjectMeta: metav1.ObjectMeta{Generation: 1, CreationTimestamp: metav1.NewTime(start)}, Spec: *spec}}
		now := start
		all := &model{s: compile(t, spec), start: start}
		for range spec.Rules {
			all.last = append(all.last, start)
		}
		w.reconcile(now, false)
		for range 40 {
			now = now.Add(time.Duration(rng.IntN(600)) * time.Second)
			if rng.IntN(8) == 0 {
				now = now.Add(time.Duration(rng.IntN(40)) * time.Hour)
			}
			for range rng.IntN(3) {
				w.reconcile(now, true)
			}
			before := w.value
			w.reconcile(now, false)
			w.reconcile(now, false) // after a run that a crash had left, the next one
			if want, within := all.value(now); within && w.value != want {
				t.Fatalf("seed %d at %s: the target has %d, was %d, want %d: %+v\n%v", seed, now, w.value, before, want, spec.Rules, w.log)
			}
			if w.of.Status.Run != nil {
				t.Fatalf("seed %d at %s: a run has not ended", seed, now)
			}
		}
		for run, n := range w.runs {
			if n > 1 {
				t.Errorf("seed %d: %s was written %d times\n%v", seed, run, n, w.log)
			}
		}
	}
}

// model follows all times of the rules, one after another.
type model struct {
	s     *Schedule
	start time.Time
	last  []time.Time
}

// value returns the value of the last time of all rules, if it is within its deadline still. A time
// beyond its deadline may or may not have been run.
func (m *model) value(now time.Time) (value int32, within bool) {
	var last time.Time
	for i := range m.s.rules {
		r := &m.s.rules[i]
		for n := r.next(m.last[i]); !n.After(now); n = r.next(n) {
			m.last[i] = n
		}
		if at := m.last[i]; at.After(m.start) && !at.Before(last) {
			last, value, within = at, *r.Replicas, !r.deadline(at).Before(now)
		}
	}
	return value, within
}
