package v1alpha1

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrackHealth: the time in which an object is not Healthy begins again with its generation and its share, and not with
// other changes of the report.
func TestTrackHealth(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	three, four := int32(3), int32(4)
	report := func(health Health, edit ...func(*ClusterState)) ClusterState {
		out := ClusterState{Name: "east", UID: "u", Generation: 2, ShareRevision: 1, Replicas: &three, Health: health}
		for _, e := range edit {
			e(&out)
		}
		return out
	}
	since := metav1.NewTime(start)
	ill := report(Degraded)
	ill.UnhealthySince, ill.WasHealthy = &since, true
	for name, tt := range map[string]struct {
		before *ClusterState
		is     ClusterState
		since  time.Duration // -1: Healthy
		was    bool
	}{
		"the first report":             {nil, report(Progressing), time.Hour, false},
		"a cluster without the object": {nil, report(Unknown, func(s *ClusterState) { s.UID = "" }), -1, false},
		"it is Healthy":                {&ill, report(Healthy), -1, false},
		"it becomes unhealthy":         {ptr(report(Healthy)), report(Progressing), time.Hour, true},
		"it stays unhealthy":           {&ill, report(Progressing, func(s *ClusterState) { s.Message = "another" }), 0, true},
		"it never was Healthy":         {ptr(report(Progressing, func(s *ClusterState) { s.UnhealthySince = &since })), report(Degraded), 0, false},
		"a syncer without the fields":  {ptr(report(Degraded)), report(Degraded), time.Hour, false},
		"another generation":           {&ill, report(Progressing, func(s *ClusterState) { s.Generation = 3 }), time.Hour, false},
		"another share":                {&ill, report(Progressing, func(s *ClusterState) { s.Replicas = &four }), time.Hour, false},
		"another revision of it":       {&ill, report(Progressing, func(s *ClusterState) { s.ShareRevision = 2 }), time.Hour, false},
		"another object":               {&ill, report(Progressing, func(s *ClusterState) { s.UID = "v" }), time.Hour, false},
	} {
		tt.is.TrackHealth(tt.before, start.Add(time.Hour))
		got := time.Duration(-1)
		if tt.is.UnhealthySince != nil {
			got = tt.is.UnhealthySince.Sub(start)
		}
		if got != tt.since || tt.is.WasHealthy != tt.was {
			t.Errorf("%s: since %s, was Healthy %v", name, got, tt.is.WasHealthy)
		}
	}
}

func ptr[T any](v T) *T { return &v }
