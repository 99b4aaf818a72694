package scaling

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// at parses a time in UTC.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	out, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func specOf(zone string, rules ...v1alpha1.ScaleRule) *v1alpha1.ScaleScheduleSpec {
	return &v1alpha1.ScaleScheduleSpec{Target: v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, TimeZone: zone, Rules: rules}
}

func replicas(name, schedule string, n int32) v1alpha1.ScaleRule {
	return v1alpha1.ScaleRule{Name: name, Schedule: schedule, Replicas: ptr.To(n)}
}

func compile(t *testing.T, spec *v1alpha1.ScaleScheduleSpec) *Schedule {
	t.Helper()
	out, errs := Compile(spec)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return out
}

// TestCompileErrors: an error names the field and the remedy.
func TestCompileErrors(t *testing.T) {
	for _, tt := range []struct{ zone, schedule, ruleZone, want string }{
		{"", "0 8 * *", "", `spec.rules[0].schedule: Invalid value: "0 8 * *": not a cron schedule (minute, hour, day of month, month, day of week, such as 0 8 * * 1-5): expected exactly 5 fields`},
		{"", "0 25 * * *", "", "end of range (25) above maximum (23)"},
		{"", "@every 5m", "", "write minutes and hours"},
		{"", "CRON_TZ=Europe/Berlin 0 8 * * *", "", "set it in timeZone"},
		{"", "0 8 30 2 *", "", "there is no such day"},
		{"Mars/Base", "0 8 * * *", "", `spec.timeZone: Invalid value: "Mars/Base": unknown time zone: use an IANA name`},
		{"Local", "0 8 * * *", "", "spec.timeZone"},
		{"", "0 8 * * *", "Local", "spec.rules[0].timeZone"},
	} {
		r := replicas("a", tt.schedule, 1)
		r.TimeZone = tt.ruleZone
		_, errs := Compile(specOf(tt.zone, r))
		if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), tt.want) {
			t.Errorf("%+v: %v", tt, errs.ToAggregate())
		}
	}
	compile(t, specOf("Europe/Berlin", replicas("a", "@daily", 1), replicas("b", "0 8 29 2 *", 1), replicas("c", "*/5 * * * mon-fri", 1)))
}

// TestLatest: the last time before now, found from any distance.
func TestLatest(t *testing.T) {
	for _, tt := range []struct{ schedule, after, now, want string }{
		{"0 8 * * *", "2026-03-01T08:00:00Z", "2026-03-02T07:59:59Z", ""},
		{"0 8 * * *", "2026-03-01T08:00:00Z", "2026-03-02T08:00:00Z", "2026-03-02T08:00:00Z"},
		{"0 8 * * *", "2026-03-01T08:00:00Z", "2026-03-09T07:00:00Z", "2026-03-08T08:00:00Z"},
		{"* * * * *", "2020-01-01T00:00:00Z", "2026-03-09T07:00:30Z", "2026-03-09T07:00:00Z"},
		{"0 0 29 2 *", "2020-01-01T00:00:00Z", "2026-03-09T07:00:30Z", "2024-02-29T00:00:00Z"},
		{"0 0 29 2 *", "2024-02-29T00:00:00Z", "2026-03-09T07:00:30Z", ""},
		{"* * * * *", "2026-03-09T07:00:00Z", "2026-03-09T06:00:00Z", ""}, // the clock was set back
	} {
		s := compile(t, specOf("", replicas("a", tt.schedule, 1)))
		want := time.Time{}
		if tt.want != "" {
			want = at(t, tt.want)
		}
		if got := s.rules[0].latest(at(t, tt.after), at(t, tt.now)); !got.Equal(want) {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestDaylightSaving: times are read in the zone. As with a CronJob, a time that does not exist on the
// day of a change is left out, and one that exists twice is run twice.
func TestDaylightSaving(t *testing.T) {
	for _, tt := range []struct {
		schedule, from string
		want           []string
	}{
		{"0 8 * * *", "2026-03-27T12:00:00Z", []string{"2026-03-28T07:00:00Z", "2026-03-29T06:00:00Z", "2026-03-30T06:00:00Z"}},
		{"0 8 * * *", "2026-10-23T12:00:00Z", []string{"2026-10-24T06:00:00Z", "2026-10-25T07:00:00Z"}},
		{"30 2 * * *", "2026-03-27T12:00:00Z", []string{"2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"}},
		{"30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"}},
	} {
		s := compile(t, specOf("Europe/Berlin", replicas("a", tt.schedule, 1)))
		now := at(t, tt.from)
		for _, want := range tt.want {
			now = s.Upcoming(now)[0].At
			if !now.Equal(at(t, want)) {
				t.Errorf("%s: %s, want %s", tt.schedule, now.UTC(), want)
			}
			if last := s.rules[0].latest(now.Add(-time.Minute), now.Add(time.Second)); !last.Equal(now) {
				t.Errorf("%s: the last time at %s is %s", tt.schedule, now, last)
			}
		}
	}
}
