package syncer

import (
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestWithinLimit(t *testing.T) {
	for _, tt := range []struct {
		name          string
		leaving, kept int
		percent       int32
		want          bool
	}{
		{"minimum of few", 10, 10, 20, true},
		{"one more than the minimum", 11, 11, 20, false},
		{"a fifth of many", 200, 1000, 20, true},
		{"more than a fifth", 201, 1000, 20, false},
		{"all, without limit", 1000, 1000, 100, true},
		{"minimum with limit 0", 10, 1000, 0, true},
		{"more than the minimum with limit 0", 11, 1000, 0, false},
	} {
		if got := withinLimit(tt.leaving, tt.kept, tt.percent); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestDrainIsDeliberate: a drain permits all removals, and so does a taint NoExecute, whether a user or a policy added it.
func TestDrainIsDeliberate(t *testing.T) {
	for _, tt := range []struct {
		user, policy v1alpha1.TaintEffect
		want         bool
	}{
		{v1alpha1.TaintNoExecute, "", true},
		{"", v1alpha1.TaintNoExecute, true},
		{v1alpha1.TaintNoSchedule, v1alpha1.TaintPreferNoSchedule, false},
	} {
		c := &v1alpha1.Cluster{}
		if tt.user != "" {
			c.Spec.Taints = []v1alpha1.Taint{{Key: "t", Effect: tt.user}}
		}
		if tt.policy != "" {
			c.Status.PolicyTaints = []v1alpha1.PolicyTaint{{Policy: "p", Key: "p", Effect: tt.policy}}
		}
		if got := isDeliberate(c, time.Now()); got != tt.want {
			t.Errorf("user %q, policy %q: %v", tt.user, tt.policy, got)
		}
	}
	c := &v1alpha1.Cluster{}
	c.Spec.Drain = &v1alpha1.ClusterDrain{Paused: true}
	if !isDeliberate(c, time.Now()) {
		t.Error("what left before a drain was paused is not deliberate")
	}
}
