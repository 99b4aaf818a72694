package interpret

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// lastApplied is kubectl's copy of the manifest that it applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ContentDigest returns a digest of the user's content of an object: everything except its status
// and the metadata that the control plane sets. For an object of which only the metadata is held, as for
// opaque kinds, it is a digest of the resource version.
func ContentDigest(obj *unstructured.Unstructured) string {
	content := make(map[string]any, len(obj.Object))
	for field, value := range obj.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			content[field] = value
		}
	}
	annotations := obj.GetAnnotations() // a copy
	_, applied := annotations[lastApplied]
	delete(annotations, lastApplied)
	// The control plane sets this one itself, when it has recorded a revision.
	delete(annotations, RevisionAnnotation)
	if len(annotations) == 0 && !applied {
		annotations = nil // as before it was set
	}
	of := []any{content, obj.GetLabels(), annotations}
	if len(content) == 0 {
		of = []any{obj.GetResourceVersion()}
	}
	data, err := json.Marshal([]any{obj.GetUID(), of})
	if err != nil {
		return "" // it was JSON before; an empty digest never matches an allowed one
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Digest is ContentDigest for a complete object of the kind.
func (k KindInfo) Digest(obj *unstructured.Unstructured) string {
	if !k.Opaque {
		return ContentDigest(obj)
	}
	return ContentDigest(&unstructured.Unstructured{Object: map[string]any{"metadata": obj.Object["metadata"]}})
}
