package status

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

func TestSummarize(t *testing.T) {
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
		applied, healthy, ready := summarize(tt.binding, tt.stale)
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

// TestAutoscaledReplicasMayDiffer: with an autoscaler, the shares need not add up to the
// object's replicas for the latest generation to count as observed.
func TestAutoscaledReplicasMayDiffer(t *testing.T) {
	three, current := int32(3), &runtime.RawExtension{Raw: []byte(`{"observedGeneration":1,"replicas":3}`)}
	b := &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Clusters: []v1alpha1.ClusterShare{{Name: "east", Replicas: &three}}},
		Status: v1alpha1.ResourceBindingStatus{Clusters: []v1alpha1.ClusterState{{Name: "east", UID: "u", Generation: 4, Replicas: &three, Status: current}}}}
	k, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(4)}, "spec": map[string]any{"replicas": int64(1)}}}
	for scaler, want := range map[*v1alpha1.Requirer]int64{nil: 0, {Kind: "HorizontalPodAutoscaler", Name: "web"}: 4} {
		b.Spec.ScaledBy = scaler
		m, err := memberOf(b, b.Spec.Clusters[0], "")
		if err != nil {
			t.Fatal(err)
		}
		status, _, err := k.Aggregate(obj, []interpret.MemberStatus{m})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedInt64(status, "observedGeneration"); got != want {
			t.Errorf("scaled by %v: generation %d is observed, want %d", scaler, got, want)
		}
	}
}

func TestSameJSON(t *testing.T) {
	stored := map[string]any{"replicas": int64(3), "conditions": []any{map[string]any{"type": "A"}}}
	if !sameJSON(stored, map[string]any{"replicas": int32(3), "readyReplicas": int64(0), "loadBalancer": map[string]any{},
		"conditions": []any{map[string]any{"type": "A"}}}) {
		t.Error("fields that the API server drops count as a difference")
	}
	if sameJSON(stored, map[string]any{"replicas": int64(4)}) {
		t.Error("a difference is not detected")
	}
}

// TestIsProgressing: a summary is delayed only if the clusters are still working.
func TestIsProgressing(t *testing.T) {
	now := v1alpha1.Staleness{Reason: "ClusterUnreachable"}
	well := v1alpha1.ClusterState{Name: "east", UID: "u", Health: v1alpha1.Healthy}
	for _, tt := range []struct {
		name string
		west *v1alpha1.ClusterState
		want bool
	}{
		{"nothing reported", nil, true},
		{"about to apply", &v1alpha1.ClusterState{Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}, true},
		{"progressing", &v1alpha1.ClusterState{UID: "u", Health: v1alpha1.Progressing}, true},
		{"healthy", &v1alpha1.ClusterState{UID: "u", Health: v1alpha1.Healthy}, false},
		{"degraded", &v1alpha1.ClusterState{UID: "u", Health: v1alpha1.Degraded}, false},
		{"rejected", &v1alpha1.ClusterState{Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplyFailed}, false},
		{"marked stale", &v1alpha1.ClusterState{UID: "u", Health: v1alpha1.Progressing, Stale: &now}, false},
	} {
		b := &v1alpha1.ResourceBinding{}
		b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: "east"}, {Name: "west"}}
		b.Status.Clusters = []v1alpha1.ClusterState{well}
		if tt.west != nil {
			tt.west.Name = "west"
			b.Status.Clusters = append(b.Status.Clusters, *tt.west)
		}
		if got := isProgressing(b, func(string) bool { return false }); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	b := &v1alpha1.ResourceBinding{}
	b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: "east"}}
	if isProgressing(b, func(string) bool { return true }) {
		t.Error("a binding with an unreachable cluster counts as progressing")
	}
}

// TestProgressSummariesAreRateLimited: progress is summarized at intervals, the final state at
// once.
func TestProgressSummariesAreRateLimited(t *testing.T) {
	fake := testingclock.NewFakeClock(time.Unix(1000, 0))
	c := &controller{Session: &fleet.Session{Clock: fake}, progressing: map[types.NamespacedName]time.Time{}}
	key := types.NamespacedName{Namespace: "shop", Name: "deployment.apps-web"}
	if wait := c.summaryDelay(key, true); wait != reportInterval {
		t.Errorf("the first summary is delayed by %s, want %s", wait, reportInterval)
	}
	fake.Step(reportInterval / 2)
	if wait := c.summaryDelay(key, true); wait != reportInterval/2 {
		t.Errorf("after half the interval it is delayed by %s, want %s", wait, reportInterval/2)
	}
	if wait := c.summaryDelay(key, false); wait != 0 || len(c.progressing) != 0 {
		t.Errorf("the final state is delayed by %s; %v is remembered", wait, c.progressing)
	}
	c.summaryDelay(key, true)
	fake.Step(reportInterval)
	if wait := c.summaryDelay(key, true); wait != 0 {
		t.Errorf("after the interval it is delayed by %s", wait)
	}
	if wait := c.summaryDelay(key, true); wait != reportInterval {
		t.Errorf("right after a summary it is delayed by %s, want %s", wait, reportInterval)
	}
}
