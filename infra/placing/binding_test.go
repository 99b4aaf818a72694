package placing

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestLabelSets: policies select a workload by its labels, and by those that a plan last allowed.
func TestLabelSets(t *testing.T) {
	gold := map[string]string{"tier": "gold"}
	for name, c := range map[string]struct {
		labels map[string]string
		manual *v1alpha1.ManualBinding
		want   []labels.Set
	}{
		"no plan yet":           {gold, &v1alpha1.ManualBinding{}, []labels.Set{gold}},
		"no policy yet":         {gold, nil, []labels.Set{gold}},
		"a label was dropped":   {nil, &v1alpha1.ManualBinding{Content: "c", Labels: gold}, []labels.Set{{}, gold}},
		"a label was added":     {gold, &v1alpha1.ManualBinding{Content: "c"}, []labels.Set{gold, {}}},
		"without labels before": {nil, &v1alpha1.ManualBinding{Content: "c"}, []labels.Set{{}, {}}},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetLabels(c.labels)
		b := &binding{ResourceBinding: &v1alpha1.ResourceBinding{Spec: v1alpha1.ResourceBindingSpec{Manual: c.manual}}, object: o}
		got := b.labelSets()
		if !slices.EqualFunc(got, c.want, func(a, b labels.Set) bool { return a != nil && a.String() == b.String() }) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
