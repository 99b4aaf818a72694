package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// lastApplied is kubectl's, and repeats what it applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ContentDigest stands for what somebody wrote into an object: all but its status and what the server
// fills into its metadata. Of an object that is held by its metadata alone it is its version.
func ContentDigest(obj *unstructured.Unstructured) string {
	content := make(map[string]any, len(obj.Object))
	for field, value := range obj.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			content[field] = value
		}
	}
	annotations := obj.GetAnnotations()
	delete(annotations, lastApplied) // a copy
	of := []any{content, obj.GetLabels(), annotations}
	if len(content) == 0 {
		of = []any{obj.GetResourceVersion()}
	}
	data, err := json.Marshal([]any{obj.GetUID(), of})
	if err != nil {
		return "" // it came from JSON; whatever it is now, it is not what was allowed
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

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
	return manual.Content != ContentDigest(obj)
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
