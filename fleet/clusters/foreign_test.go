package clusters

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestStatusOfOthersStays: a health checker's conditions and the taints of policies survive all writes of
// the status, and their owners can remove them.
func TestStatusOfOthersStays(t *testing.T) {
	s := open(t, map[string]string{"east": ""})
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	apply := func(manager string, status map[string]any) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
			"metadata": map[string]any{"name": "east"}, "status": status}}
		_, err := s.control.Dynamic().Resource(v1alpha1.ClusterResource).ApplyStatus(t.Context(), "east", u, metav1.ApplyOptions{FieldManager: manager})
		if err != nil {
			t.Fatal(err)
		}
	}
	now := s.clock.Now().UTC().Format(time.RFC3339)
	apply("health-checker", map[string]any{"conditions": []any{map[string]any{"type": "DisksHealthy", "status": "False", "reason": "Failing", "message": "", "lastTransitionTime": now}}})
	apply("atoll-taints", map[string]any{"policyTaints": []any{map[string]any{"policy": "disks", "key": "broken", "effect": "NoExecute", "timeAdded": now}}})
	s.id.Store("id-2")
	s.waitReady("east", v1alpha1.ReasonWrongCluster)
	s.id.Store("id-1")
	s.waitReady("east", v1alpha1.ReasonClusterReady)
	east := s.now("east")
	if len(east.Status.PolicyTaints) != 1 || meta.FindStatusCondition(east.Status.Conditions, "DisksHealthy") == nil {
		t.Errorf("the status is %+v", east.Status)
	}
	apply("health-checker", map[string]any{})
	apply("atoll-taints", map[string]any{})
	s.id.Store("id-2")
	s.waitReady("east", v1alpha1.ReasonWrongCluster)
	fakeapi.Until(t, "no other manager owns them", func() bool {
		east := s.now("east")
		return len(east.Status.PolicyTaints) == 0 && meta.FindStatusCondition(east.Status.Conditions, "DisksHealthy") == nil
	})
}
