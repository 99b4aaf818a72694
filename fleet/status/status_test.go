package status

import (
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestJudge(t *testing.T) {
	binding := func(states ...v1alpha1.ClusterState) *v1alpha1.ResourceBinding {
		b := &v1alpha1.ResourceBinding{}
		for _, name := range []string{"east", "west"} {
			b.Spec.Clusters = append(b.Spec.Clusters, v1alpha1.ClusterShare{Name: name})
		}
		b.Status.Clusters = states
		return b
	}
	well := func(name string) v1alpha1.ClusterState {
		return v1alpha1.ClusterState{Name: name, UID: "u", Health: v1alpha1.Healthy}
	}
	tests := []struct {
		name                    string
		binding                 *v1alpha1.ResourceBinding
		stale                   map[string]string
		applied, healthy, ready string
	}{
		{"all well", binding(well("east"), well("west")), nil, "True AppliedEverywhere in 2 of 2 clusters", "True HealthyEverywhere in 2 of 2 clusters", "2/2"},
		{"one missing", binding(well("east")), nil, "False NotApplied west: not applied yet", "False Progressing west: not reported yet", "1/2"},
		{"one intends to", binding(well("east"), v1alpha1.ClusterState{Name: "west", Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}), nil,
			"False NotApplied west: not applied yet", "False Progressing west: Unknown", "1/2"},
		{"one is refused", binding(well("east"), v1alpha1.ClusterState{Name: "west", UID: "u", Health: v1alpha1.Healthy, Reason: v1alpha1.StateApplyFailed, Message: "quota"}), nil,
			"False NotApplied west: quota", "True HealthyEverywhere in 2 of 2 clusters", "2/2"},
		{"one is contested", binding(well("east"), v1alpha1.ClusterState{Name: "west", UID: "u", Health: v1alpha1.Healthy, Reason: v1alpha1.StateContested, Message: "kubectl"}), nil,
			"False NotApplied west: kubectl", "True HealthyEverywhere in 2 of 2 clusters", "2/2"},
		{"one is stuck", binding(well("east"), v1alpha1.ClusterState{Name: "west", UID: "u", Health: v1alpha1.Degraded, Message: "stuck"}), nil,
			"True AppliedEverywhere in 2 of 2 clusters", "False Degraded west: stuck", "1/2"},
		{"no cluster", &v1alpha1.ResourceBinding{}, nil, "False NotPlaced placed on no cluster; see condition Scheduled",
			"False NotPlaced placed on no cluster; see condition Scheduled", "0/0"},
	}
	for _, tt := range tests {
		applied, healthy, ready := judge(tt.binding, tt.stale)
		if got := string(applied.Status) + " " + applied.Reason + " " + applied.Message; got != tt.applied {
			t.Errorf("%s: Applied %q, want %q", tt.name, got, tt.applied)
		}
		if got := string(healthy.Status) + " " + healthy.Reason + " " + healthy.Message; got != tt.healthy {
			t.Errorf("%s: Healthy %q, want %q", tt.name, got, tt.healthy)
		}
		if ready != tt.ready {
			t.Errorf("%s: ready %s, want %s", tt.name, ready, tt.ready)
		}
	}
}

func TestSameJSON(t *testing.T) {
	stored := map[string]any{"replicas": int64(3), "conditions": []any{map[string]any{"type": "A"}}}
	if !sameJSON(stored, map[string]any{"replicas": int32(3), "readyReplicas": int64(0), "loadBalancer": map[string]any{},
		"conditions": []any{map[string]any{"type": "A"}}}) {
		t.Error("what the API server drops counts as a difference")
	}
	if sameJSON(stored, map[string]any{"replicas": int64(4)}) {
		t.Error("a difference is not seen")
	}
}
