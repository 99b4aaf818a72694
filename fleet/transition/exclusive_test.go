package transition

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestExclusiveThatFailedOver: an object that must not run twice runs in west since east was lost. East is back and still
// has its copy. The object is not in transition because of that: east removes the copy when no transition is left. If the
// object moves on, it waits for both copies.
func TestExclusiveThatFailedOver(t *testing.T) {
	west, north := []Share{{Cluster: "west", Whole: true}}, []Share{{Cluster: "north", Whole: true}}
	in := Input{Rule: Exclusive, Now: west, Goal: west, From: west, Wanted: 1, Reports: map[string]Report{
		"east": {Present: true, Running: 1},
		"west": {Present: true, Current: true, Healthy: true, Available: 1, Running: 1},
	}}
	if out := Step(in); !out.Done || !slices.Equal(out.Next, west) {
		t.Errorf("it is not done: %+v", out)
	}
	in.Goal = north
	out := Step(in)
	if out.Done || len(out.Next) > 0 {
		t.Errorf("it moves on to north with %+v", out)
	}
	in.Now, in.Underway = out.Next, true
	if out := Step(in); out.Done || len(out.Next) > 0 || out.WaitingFor != "cluster east to remove its copy" {
		t.Errorf("it does not wait for the copies: %+v", out)
	}
	in.Reports = nil
	if out := Step(in); !out.Done {
		t.Errorf("it does not begin in north: %+v", out)
	}
}

func TestIsExclusive(t *testing.T) {
	for kind, want := range map[schema.GroupKind]bool{
		{Kind: "Pod"}: true, {Group: "batch", Kind: "CronJob"}: true, {Group: "apps", Kind: "Deployment"}: false, {Group: "example.com", Kind: "Pod"}: false,
	} {
		if got := IsExclusive(kind); got != want {
			t.Errorf("%s: %t", kind, got)
		}
	}
}
