package fleet

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Awaits tells whether an object waits for a plan before clusters get it, or lose it: where only
// plans change clusters, they may have what the plan was about that was applied last. obj is nil if there is
// none any more.
func Awaits(b *v1alpha1.ResourceBinding, obj *unstructured.Unstructured) bool {
	manual := b.Spec.Manual
	switch {
	case manual == nil || manual.Removal:
		return false
	case obj == nil:
		return true
	}
	return manual.Content != interpret.ContentDigest(obj)
}

// Awaiting gives the binding as a syncer is to see it: suspended while it awaits a plan.
func Awaiting(b *v1alpha1.ResourceBinding, obj *unstructured.Unstructured) *v1alpha1.ResourceBinding {
	if b.Spec.Suspend || !Awaits(b, obj) {
		return b
	}
	out := *b
	out.Spec.Suspend = true
	return &out
}
