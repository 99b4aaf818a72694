package fleet

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// AwaitsPlan reports whether clusters must not receive, or lose, an object until a plan is applied.
// With manual changes, clusters may have only the content of the last applied plan. obj is nil if
// the object no longer exists.
func AwaitsPlan(b *v1alpha1.ResourceBinding, obj *unstructured.Unstructured) bool {
	manual := b.Spec.Manual
	switch {
	case manual == nil || manual.Removal:
		return false
	case obj == nil:
		return true
	}
	return manual.Content != interpret.ContentDigest(obj)
}

// SuspendIfAwaitingPlan returns the binding as a syncer should see it: suspended while it awaits a
// plan.
func SuspendIfAwaitingPlan(b *v1alpha1.ResourceBinding, obj *unstructured.Unstructured) *v1alpha1.ResourceBinding {
	if b.Spec.Suspend || !AwaitsPlan(b, obj) {
		return b
	}
	out := *b
	out.Spec.Suspend = true
	return &out
}
