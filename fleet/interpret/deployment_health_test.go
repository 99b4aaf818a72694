package interpret

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestDeploymentHealthNamesTheCause: a Deployment whose pods are rejected has two conditions. The one about the pods says
// why, wherever it is in the list.
func TestDeploymentHealthNamesTheCause(t *testing.T) {
	stuck := map[string]any{"type": "Progressing", "status": "False", "message": "timed out"}
	rejected := map[string]any{"type": "ReplicaFailure", "status": "True", "message": "forbidden"}
	for _, conditions := range [][]any{{stuck, rejected}, {rejected, stuck}, {rejected}} {
		d := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": conditions}}}
		if health, message := deploymentHealth(d); health != v1alpha1.Degraded || message != "forbidden" {
			t.Errorf("%v: %s %q", conditions, health, message)
		}
	}
}
