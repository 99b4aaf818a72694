package transition

import (
	"strings"
	"testing"
	"time"
)

// TestWaitingNamesTheClustersReason: a transition that waits for a cluster says why its copy does not run, also when the
// object returns at the deadline.
func TestWaitingNamesTheClustersReason(t *testing.T) {
	const why = "pods are forbidden"
	start := time.Unix(0, 0)
	for _, whole := range []bool{false, true} {
		east, west := Share{Cluster: "east", Replicas: 1, Whole: whole}, Share{Cluster: "west", Replicas: 1, Whole: whole, Revision: 1}
		in := Input{Now: []Share{east, west}, Goal: []Share{west}, From: []Share{east}, Wanted: 1, Underway: true, Progress: start, At: start,
			Limits: Limits{Deadline: time.Minute},
			Reports: map[string]Report{"east": {Present: true, Current: true, Settled: true, Healthy: true, Available: 1, Running: 1},
				"west": {Present: true, Current: true, Revision: 1, Settled: true, Message: why}}}
		if out := Step(in); !strings.Contains(out.WaitingFor, "west") || !strings.HasSuffix(out.WaitingFor, ": "+why) {
			t.Errorf("whole %t: it waits for %q", whole, out.WaitingFor)
		}
		in.At = start.Add(time.Minute)
		if out := Step(in); len(out.Failed) != 1 || !strings.HasSuffix(out.WaitingFor, ": "+why) {
			t.Errorf("whole %t: %v failed, waited for %q", whole, out.Failed, out.WaitingFor)
		}
	}
}
