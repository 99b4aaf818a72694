package moving

import (
	"strings"
	"testing"
	"time"
)

// TestMerge: requests change their own field of the annotation, and keep all others.
func TestMerge(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name, was string
		edit      edit
		want      string
		changed   bool
	}{
		{"pause", "", pause, `{"paused":true}`, true},
		{"pause again", `{"paused":true}`, pause, `{"paused":true}`, false},
		{"pause an exception", `{"paused":false}`, pause, `{"paused":true}`, true},
		{"pause keeps settings", `{"soak":"5m","maxSurge":"50%"}`, pause, `{"maxSurge":"50%","paused":true,"soak":"5m"}`, true},
		{"pause keeps unknown fields", `{"later":{"a":[1,2]}}`, pause, `{"later":{"a":[1,2]},"paused":true}`, true},
		{"resume", `{"paused":true}`, resume(false), "", true},
		{"resume keeps settings", `{"paused":true,"soak":"5m"}`, resume(false), `{"soak":"5m"}`, true},
		{"resume without a pause", `{"soak":"5m"}`, resume(false), `{"soak":"5m"}`, false},
		{"resume without settings", "", resume(false), "", false},
		{"resume although the policy pauses", "", resume(true), `{"paused":false}`, true},
		{"resume although both pause", `{"paused":true}`, resume(true), `{"paused":false}`, true},
		{"resume an exception again", `{"paused":false}`, resume(true), `{"paused":false}`, false},
		{"abort", `{"paused":true}`, abort("t7"), `{"abort":"t7","paused":true}`, true},
		{"abort again", `{"abort":"t7"}`, abort("t7"), `{"abort":"t7"}`, false},
		{"abort a later one", `{"abort":"t6"}`, abort("t7"), `{"abort":"t7"}`, true},
		{"retry", `{"abort":"t7"}`, retryAt(at.In(time.FixedZone("", 3600))), `{"abort":"t7","retry":"2026-01-02T03:04:05Z"}`, true},
		{"null is none", "null", pause, `{"paused":true}`, true},
		{"an empty object", "{}", abort("a"), `{"abort":"a"}`, true},
	} {
		got, changed, err := merge(tt.was, tt.edit)
		if err != nil || got != tt.want || changed != tt.changed {
			t.Errorf("%s: %q, %t, %v; want %q, %t", tt.name, got, changed, err, tt.want, tt.changed)
		}
	}
	for was, want := range map[string]string{
		"paused":             "not a JSON object",
		`["paused"]`:         "not a JSON object",
		`{"paused":true`:     "not a JSON object",
		`{"paused":"yes"}`:   "paused",
		`{"retry":"monday"}`: "monday",
		`{"soak":"long"}`:    "long",
	} {
		if got, _, err := merge(was, pause); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want an error with %q", was, got, err, want)
		}
	}
}
