package view

import (
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// TestSyncersSeePolicyTaints: a syncer elsewhere learns that a policy drains its cluster, and nothing
// about the policy.
func TestSyncersSeePolicyTaints(t *testing.T) {
	c := &v1alpha1.Cluster{Status: v1alpha1.ClusterStatus{PolicyTaints: []v1alpha1.PolicyTaint{{Policy: "secret", Key: "broken", Effect: v1alpha1.TaintNoExecute}}}}
	got := reducedCluster(c, fleet.ControlPlane{})
	if len(got.Spec.Taints) != 1 || got.Spec.Taints[0].Key != "broken" || len(got.Status.PolicyTaints) != 0 {
		t.Errorf("taints %v, of policies %v", got.Spec.Taints, got.Status.PolicyTaints)
	}
}
