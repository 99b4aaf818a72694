package join

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestLeftovers: what a cluster keeps is named with the commands that remove it, and nothing else is.
func TestLeftovers(t *testing.T) {
	ready := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: status, Reason: reason}}
	}
	for _, tt := range []struct {
		name     string
		mode     v1alpha1.ClusterMode
		ready    []metav1.Condition
		cascade  string
		has, not []string
	}{
		{"it answers", v1alpha1.ModePush, ready(metav1.ConditionTrue, v1alpha1.ReasonClusterReady), v1alpha1.LeaveDelete, nil, []string{"kubectl", "stay"}},
		{"objects stay", v1alpha1.ModePush, ready(metav1.ConditionTrue, v1alpha1.ReasonClusterReady), v1alpha1.LeaveOrphan, []string{"objects stay"}, []string{"kubectl"}},
		{"it is silent", v1alpha1.ModePush, ready(metav1.ConditionFalse, v1alpha1.ReasonClusterUnreachable), v1alpha1.LeaveOrphan,
			[]string{"objects stay", "delete apiservices,clusterroles", "delete lease atoll-control-plane"}, nil},
		{"it never answered", v1alpha1.ModePush, nil, v1alpha1.LeaveOrphan, []string{"did not answer"}, nil},
		{"it belongs to another", v1alpha1.ModePush, ready(metav1.ConditionFalse, v1alpha1.ReasonOtherControlPlane), v1alpha1.LeaveOrphan,
			[]string{"another control plane"}, []string{"kubectl", "objects stay"}},
		{"it has a syncer", v1alpha1.ModePull, ready(metav1.ConditionTrue, v1alpha1.ReasonClusterReady), v1alpha1.LeaveDelete,
			[]string{"delete namespace atoll-system", "delete clusterrolebinding atoll-syncer", "delete lease"}, []string{"objects stay", "did not answer"}},
	} {
		c := &v1alpha1.Cluster{Spec: v1alpha1.ClusterSpec{Mode: tt.mode}, Status: v1alpha1.ClusterStatus{Conditions: tt.ready}}
		text := strings.Join(leftovers(c, tt.cascade), "\n")
		for _, word := range tt.has {
			if !strings.Contains(text, word) {
				t.Errorf("%s: %q is missing in %q", tt.name, word, text)
			}
		}
		for _, word := range tt.not {
			if strings.Contains(text, word) {
				t.Errorf("%s: %q is in %q", tt.name, word, text)
			}
		}
	}
}
