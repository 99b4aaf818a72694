package fleet

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestComponentsAreCounted: quotas count all components of an object, once for each cluster that runs it.
func TestComponentsAreCounted(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Train"}
	c, err := interpret.ParseCustomization(&v1alpha1.ResourceInterpretation{Spec: v1alpha1.ResourceInterpretationSpec{
		Target:     v1alpha1.InterpretationTarget{APIVersion: "example.com/v1", Kind: "Train"},
		Components: "[{'name': 'head', 'requests': {'cpu': '2'}}, {'name': 'worker', 'replicas': self.spec.size, 'requests': {'cpu': '1'}}]",
	}})
	if err != nil {
		t.Fatal(err)
	}
	k, _ := interpret.BuiltIn().With(interpret.Generic(gvk, "trains", false, nil)).WithCustomizations(c).Find(gvk.GroupKind())
	w := Workload{Kind: k, Object: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Train",
		"metadata": map[string]any{"name": "t", "namespace": "shop"}, "spec": map[string]any{"size": int64(4)}}}}
	for _, tt := range []struct {
		clusters  []v1alpha1.ClusterShare
		cpu, pods int64
	}{
		{nil, 6, 5},
		{[]v1alpha1.ClusterShare{{Name: "east"}}, 6, 5},
		{[]v1alpha1.ClusterShare{{Name: "east"}, {Name: "west"}}, 12, 10},
	} {
		w.Shares = tt.clusters
		uses, _, err := w.Uses()
		if err != nil {
			t.Fatal(err)
		}
		cpu, pods := uses["requests.cpu"], uses["pods"]
		if cpu.Value() != tt.cpu || pods.Value() != tt.pods {
			t.Errorf("in %d clusters: %v", len(tt.clusters), uses)
		}
	}
}
