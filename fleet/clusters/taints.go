package clusters

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// observedTaints returns when NoExecute taints without timeAdded were first observed. They are
// stored in the status: applying the Cluster again would remove them from the spec, and tolerations
// would start again.
func observedTaints(taints []v1alpha1.Taint, before []v1alpha1.ObservedTaint, now metav1.Time) []v1alpha1.ObservedTaint {
	var out []v1alpha1.ObservedTaint
	for _, t := range taints {
		if t.Effect != v1alpha1.TaintNoExecute || t.TimeAdded != nil {
			continue
		}
		seen := v1alpha1.ObservedTaint{Key: t.Key, Value: t.Value, Effect: t.Effect, Since: now}
		if i := slices.IndexFunc(before, seen.Same); i >= 0 {
			seen.Since = before[i].Since
		}
		out = append(out, seen)
	}
	return out
}
