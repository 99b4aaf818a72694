package scaling

import (
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// created returns a ScaleSchedule as it is before the controller saw it.
func created(t *testing.T, when string, spec *v1alpha1.ScaleScheduleSpec) *v1alpha1.ScaleSchedule {
	t.Helper()
	return &v1alpha1.ScaleSchedule{ObjectMeta: metav1.ObjectMeta{Generation: 1, CreationTimestamp: metav1.NewTime(at(t, when))}, Spec: *spec}
}

// decide decides at a time, and stores the status.
func decide(t *testing.T, of *v1alpha1.ScaleSchedule, when string) *Decision {
	t.Helper()
	d := compile(t, &of.Spec).Decide(of, at(t, when))
	of.Status = d.Status
	return d
}

// execute runs the due rules with success, and returns the decision.
func execute(t *testing.T, of *v1alpha1.ScaleSchedule, when string) *Decision {
	t.Helper()
	d := decide(t, of, when)
	if len(d.Rules) > 0 {
		of.Status = End(d.Begin(of.Generation, v1alpha1.ScaleValues{}), v1alpha1.ScaleSucceeded, "", at(t, when))
	}
	return d
}

func (d *Decision) does(t *testing.T, want string) {
	t.Helper()
	if got := strings.TrimSpace(strings.Join(d.Rules, ",") + " " + String(d.Set)); got != want {
		t.Errorf("it does %q, want %q", got, want)
	}
}

func change(of *v1alpha1.ScaleSchedule, by func(*v1alpha1.ScaleScheduleSpec)) {
	by(&of.Spec)
	of.Generation++
}

// TestTimesAreRunOnce: each time runs once, and nothing happens between times.
func TestTimesAreRunOnce(t *testing.T) {
	of := created(t, "2026-02-01T07:00:00Z", specOf("", replicas("up", "0 8 * * *", 9), replicas("down", "0 20 * * *", 2)))
	execute(t, of, "2026-02-01T07:00:01Z").does(t, "")
	if of.Status.NextRule != "up" || !of.Status.NextScheduleTime.Time.Equal(at(t, "2026-02-01T08:00:00Z")) {
		t.Errorf("next: %+v", of.Status)
	}
	execute(t, of, "2026-02-01T08:00:00Z").does(t, "up replicas 9")
	execute(t, of, "2026-02-01T08:00:00Z").does(t, "")
	execute(t, of, "2026-02-01T12:00:00Z").does(t, "")
	execute(t, of, "2026-02-01T20:00:01Z").does(t, "down replicas 2")
	if of.Status.NextRule != "up" || of.Status.Rules[1].LastResult != v1alpha1.ScaleSucceeded || !of.Status.Rules[1].LastSuccessfulTime.Time.Equal(at(t, "2026-02-01T20:00:01Z")) {
		t.Errorf("%+v", of.Status)
	}
}

// TestDowntime: of the times that passed, the last one within its deadline runs, once.
func TestDowntime(t *testing.T) {
	spec := specOf("", replicas("up", "0 8 * * *", 9), replicas("down", "0 20 * * *", 2))
	of := created(t, "2026-02-01T07:00:00Z", spec)
	execute(t, of, "2026-02-01T08:00:00Z").does(t, "up replicas 9")
	// The downtime is longer than the default deadline.
	d := execute(t, of, "2026-02-03T21:30:00Z")
	d.does(t, "")
	if !reflect.DeepEqual(d.Ended, []string{"up", "down"}) || of.Status.Rules[1].LastResult != v1alpha1.ScaleMissed || !of.Status.Rules[1].LastScheduleTime.Time.Equal(at(t, "2026-02-03T20:00:00Z")) {
		t.Errorf("ended %v: %+v", d.Ended, of.Status.Rules)
	}
	if d = execute(t, of, "2026-02-03T21:30:01Z"); len(d.Ended) > 0 {
		t.Errorf("it is missed twice: %v", d.Ended)
	}
	execute(t, of, "2026-02-04T08:59:59Z").does(t, "up replicas 9")
	// Both are within their deadlines: the later one wins, and the other is superseded.
	change(of, func(s *v1alpha1.ScaleScheduleSpec) {
		for i := range s.Rules {
			s.Rules[i].StartingDeadlineSeconds = ptr.To[int64](86400)
		}
	})
	execute(t, of, "2026-02-04T09:00:00Z").does(t, "")
	execute(t, of, "2026-02-05T19:00:00Z").does(t, "up replicas 9")
	if of.Status.Rules[1].LastResult != v1alpha1.ScaleSuperseded || !strings.Contains(of.Status.Rules[1].Message, "rule up") {
		t.Errorf("%+v", of.Status.Rules[1])
	}
	execute(t, of, "2026-02-05T19:00:01Z").does(t, "")
}

// TestSameTime: of rules that are due at the same time, the last one in the spec wins for each field.
func TestSameTime(t *testing.T) {
	bounds := func(name string, low, high *int32) v1alpha1.ScaleRule {
		return v1alpha1.ScaleRule{Name: name, Schedule: "0 8 * * *", MinReplicas: low, MaxReplicas: high}
	}
	of := created(t, "2026-02-01T07:00:00Z", specOf("", bounds("a", ptr.To[int32](1), nil), bounds("b", ptr.To[int32](2), ptr.To[int32](5)), bounds("c", nil, ptr.To[int32](8))))
	execute(t, of, "2026-02-01T08:00:00Z").does(t, "b,c minReplicas 2 and maxReplicas 8")
	if of.Status.Rules[0].LastResult != v1alpha1.ScaleSuperseded || of.Status.NextRule != "c" {
		t.Errorf("%+v", of.Status)
	}
}

// TestSuspended: times that pass during a suspension are not made up.
func TestSuspended(t *testing.T) {
	of := created(t, "2026-02-01T07:00:00Z", specOf("", replicas("up", "0 8 * * *", 9), replicas("down", "0 20 * * *", 2)))
	execute(t, of, "2026-02-01T07:00:00Z")
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Rules[0].Suspend = true })
	execute(t, of, "2026-02-01T08:00:00Z").does(t, "")
	if of.Status.Rules[0].NextScheduleTime != nil || of.Status.NextRule != "down" {
		t.Errorf("%+v", of.Status)
	}
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Rules[0].Suspend = false })
	execute(t, of, "2026-02-01T08:00:30Z").does(t, "")
	execute(t, of, "2026-02-01T20:00:00Z").does(t, "down replicas 2")
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Suspend = true })
	execute(t, of, "2026-02-02T08:00:00Z").does(t, "")
	if of.Status.NextScheduleTime != nil || of.Status.NextRule != "" {
		t.Errorf("%+v", of.Status)
	}
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Suspend = false })
	execute(t, of, "2026-02-02T08:10:00Z").does(t, "")
	execute(t, of, "2026-02-02T20:10:00Z").does(t, "down replicas 2")
}

// TestChangedRules: a changed rule begins again, and so does a rule that is added.
func TestChangedRules(t *testing.T) {
	of := created(t, "2026-02-01T07:00:00Z", specOf("", replicas("up", "0 8 * * *", 9)))
	execute(t, of, "2026-02-01T08:00:00Z").does(t, "up replicas 9")
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Rules[0].Schedule = "30 8 * * *" })
	execute(t, of, "2026-02-01T08:40:00Z").does(t, "")
	change(of, func(s *v1alpha1.ScaleScheduleSpec) {
		s.Rules = append(s.Rules, replicas("new", "0 9 * * *", 3))
	})
	execute(t, of, "2026-02-01T09:01:00Z").does(t, "")
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.TimeZone = "Europe/Berlin" })
	execute(t, of, "2026-02-02T07:50:00Z").does(t, "") // 8:50 in Berlin
	execute(t, of, "2026-02-02T08:00:00Z").does(t, "new replicas 3")
	// Other values do not begin anything.
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Rules[1].Replicas = ptr.To[int32](4) })
	execute(t, of, "2026-02-02T08:00:01Z").does(t, "")
}

// TestNewSchedule: before the first observation, the time of creation counts, unless the spec has
// changed since.
func TestNewSchedule(t *testing.T) {
	of := created(t, "2026-02-01T07:59:59Z", specOf("", replicas("up", "0 8 * * *", 9)))
	execute(t, of, "2026-02-01T08:00:07Z").does(t, "up replicas 9")
	of = created(t, "2026-02-01T07:59:59Z", specOf("", replicas("up", "0 8 * * *", 9)))
	of.Generation = 2
	execute(t, of, "2026-02-01T08:00:07Z").does(t, "")
}

// TestRunGoesOn: a run that has begun goes on until its deadline or a change of the spec. No other
// begins meanwhile.
func TestRunGoesOn(t *testing.T) {
	up, down := replicas("up", "0 8 * * *", 9), replicas("down", "30 8 * * *", 2)
	up.StartingDeadlineSeconds = ptr.To[int64](3600)
	begin := func() *v1alpha1.ScaleSchedule {
		of := created(t, "2026-02-01T07:00:00Z", specOf("", up, down))
		of.Status = decide(t, of, "2026-02-01T08:00:00Z").Begin(of.Generation, v1alpha1.ScaleValues{Replicas: ptr.To[int32](5)})
		return of
	}
	of := begin()
	d := decide(t, of, "2026-02-01T08:45:00Z")
	d.does(t, "up replicas 9")
	if !d.Begun || *of.Status.Run.Previous.Replicas != 5 {
		t.Errorf("%+v", d)
	}
	of.Status = End(d.Status, v1alpha1.ScaleSucceeded, "", at(t, "2026-02-01T08:45:00Z"))
	d = decide(t, of, "2026-02-01T08:45:01Z")
	d.does(t, "down replicas 2")
	if d.Begun {
		t.Error("the next run has begun")
	}
	of = begin()
	of.Status = Explain(of.Status, "retrying: the webhook is down")
	d = decide(t, of, "2026-02-01T09:00:01Z")
	d.does(t, "down replicas 2")
	if st := d.Status.Rules[0]; st.LastResult != v1alpha1.ScaleMissed || !strings.Contains(st.Message, "the webhook is down") || d.Status.Run != nil {
		t.Errorf("%+v", st)
	}
	of = begin()
	change(of, func(s *v1alpha1.ScaleScheduleSpec) { s.Rules[0].Replicas = ptr.To[int32](7) })
	d = decide(t, of, "2026-02-01T08:00:02Z")
	d.does(t, "")
	if st := d.Status.Rules[0]; st.LastResult != v1alpha1.ScaleSuperseded || d.Status.Run != nil {
		t.Errorf("%+v", st)
	}
}

func TestResume(t *testing.T) {
	n := func(i int32) v1alpha1.ScaleValues {
		return v1alpha1.ScaleValues{Replicas: &i, MaxReplicas: ptr.To[int32](99)}
	}
	run := &v1alpha1.ScaleRun{Previous: v1alpha1.ScaleValues{Replicas: ptr.To[int32](5)}}
	set := v1alpha1.ScaleValues{Replicas: ptr.To[int32](9)}
	for current, want := range map[int32]Step{5: Write, 9: Done, 6: Overtaken} {
		if got := Resume(run, set, n(current)); got != want {
			t.Errorf("%d: %d, want %d", current, got, want)
		}
	}
	if got := short(strings.Repeat("ü", 2000)); len([]rune(got)) != 1024 {
		t.Errorf("a message has %d characters", len([]rune(got)))
	}
}

// BenchmarkDecide is a schedule that has nothing to do.
func BenchmarkDecide(b *testing.B) {
	spec := specOf("Europe/Berlin", replicas("up", "0 8 * * *", 9), replicas("down", "0 20 * * *", 2))
	of := &v1alpha1.ScaleSchedule{ObjectMeta: metav1.ObjectMeta{Generation: 1, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0))}, Spec: *spec}
	now := time.Unix(1e9+60, 0)
	for b.Loop() {
		s, _ := Compile(spec)
		of.Status = s.Decide(of, now).Status
	}
}
