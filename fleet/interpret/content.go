package interpret

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// lastApplied is kubectl's, and repeats what it applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ContentDigest stands for what somebody wrote into an object: all but its status and what the server
// fills into its metadata. Of an object that is held by its metadata alone, as those of opaque kinds are, it is
// its version.
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

// Digest is ContentDigest of an object of the kind that was read whole.
func (k Kind) Digest(obj *unstructured.Unstructured) string {
	if !k.Opaque {
		return ContentDigest(obj)
	}
	return ContentDigest(&unstructured.Unstructured{Object: map[string]any{"metadata": obj.Object["metadata"]}})
}
