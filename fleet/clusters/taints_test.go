package clusters

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestTaintsAreDated: a taint is dated from when it was first observed with its value, until it is
// removed.
func TestTaintsAreDated(t *testing.T) {
	at := func(hour int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC)) }
	said := at(1)
	broken := v1alpha1.Taint{Key: "broken", Value: "disk", Effect: v1alpha1.TaintNoExecute}
	seen := func(value string, hour int) v1alpha1.ObservedTaint {
		return v1alpha1.ObservedTaint{Key: "broken", Value: value, Effect: v1alpha1.TaintNoExecute, Since: at(hour)}
	}
	for name, tt := range map[string]struct {
		taints       []v1alpha1.Taint
		before, want []v1alpha1.ObservedTaint
	}{
		"new":            {[]v1alpha1.Taint{broken}, nil, []v1alpha1.ObservedTaint{seen("disk", 9)}},
		"seen before":    {[]v1alpha1.Taint{broken}, []v1alpha1.ObservedTaint{seen("disk", 3)}, []v1alpha1.ObservedTaint{seen("disk", 3)}},
		"another value":  {[]v1alpha1.Taint{broken}, []v1alpha1.ObservedTaint{seen("fan", 3)}, []v1alpha1.ObservedTaint{seen("disk", 9)}},
		"gone":           {nil, []v1alpha1.ObservedTaint{seen("disk", 3)}, nil},
		"has timeAdded":  {[]v1alpha1.Taint{{Key: "broken", Value: "disk", Effect: v1alpha1.TaintNoExecute, TimeAdded: &said}}, []v1alpha1.ObservedTaint{seen("disk", 3)}, nil},
		"does not evict": {[]v1alpha1.Taint{{Key: "broken", Effect: v1alpha1.TaintNoSchedule}}, nil, nil},
	} {
		if got := observedTaints(tt.taints, tt.before, at(9)); !equality.Semantic.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	c := &v1alpha1.Cluster{Spec: v1alpha1.ClusterSpec{Taints: []v1alpha1.Taint{broken}}, Status: v1alpha1.ClusterStatus{Taints: []v1alpha1.ObservedTaint{seen("disk", 3)}}}
	if dated := c.TaintsWithTime(); dated[0].TimeAdded == nil || !dated[0].TimeAdded.Time.Equal(at(3).Time) || c.Spec.Taints[0].TimeAdded != nil {
		t.Errorf("dated: %v, from %v", dated, c.Spec.Taints)
	}
}
