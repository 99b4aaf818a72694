package mapping

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Copy returns the copy that the parent is to have of an object.
func (c Child) Copy(k interpret.KindInfo, source *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	out := k.Content(source)
	out.SetNamespace(c.Namespace(source.GetNamespace()))
	labels, annotations := out.GetLabels(), out.GetAnnotations()
	maps.DeleteFunc(labels, isMark)
	maps.DeleteFunc(annotations, isMark)
	out.SetLabels(merged(labels, c.labels()))
	out.SetAnnotations(annotations)
	content, err := json.Marshal(out.Object)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", source.GetKind(), source.GetNamespace(), source.GetName(), err)
	}
	out.SetAnnotations(merged(annotations, map[string]string{
		v1alpha1.SourceUIDAnnotation:        string(source.GetUID()),
		v1alpha1.SourceGenerationAnnotation: strconv.FormatInt(source.GetGeneration(), 10),
		v1alpha1.SourceDigestAnnotation:     digest(content),
	}))
	return out, nil
}

// digest returns a short digest of content. It tells versions of one author's objects apart, and protects nothing.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// isMark reports whether a label or an annotation of an object of the child looks like one of the marks of a copy. Only Copy sets these.
func isMark(key, _ string) bool { return strings.HasPrefix(key, v1alpha1.Group+"/") }

// merged returns labels or annotations with some more.
func merged(some, more map[string]string) map[string]string {
	out := maps.Clone(some)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, more)
	return out
}

// isCurrent reports whether a copy has the content that it is to have.
func isCurrent(found, desired *unstructured.Unstructured) bool {
	is, want := found.GetAnnotations(), desired.GetAnnotations()
	return is[v1alpha1.SourceDigestAnnotation] == want[v1alpha1.SourceDigestAnnotation] &&
		is[v1alpha1.SourceGenerationAnnotation] == want[v1alpha1.SourceGenerationAnnotation]
}

// isCopyOf reports whether a copy was made of this very object, and not of an earlier one of the same name.
func isCopyOf(found, source *unstructured.Unstructured) bool {
	return found.GetAnnotations()[v1alpha1.SourceUIDAnnotation] == string(source.GetUID())
}

// Status returns the status that an object of the child is to have by its copy; nil if the copy has none yet. Generations in it are those of the
// object: clients wait until the status has the generation of their change.
func Status(source, copied *unstructured.Unstructured) map[string]any {
	status, ok := copied.Object["status"].(map[string]any)
	if !ok || len(status) == 0 || !isCopyOf(copied, source) {
		return nil
	}
	out := (&unstructured.Unstructured{Object: status}).DeepCopy().Object
	generation, err := strconv.ParseInt(copied.GetAnnotations()[v1alpha1.SourceGenerationAnnotation], 10, 64)
	if err != nil {
		return out
	}
	translate := func(in map[string]any) {
		observed, ok := in["observedGeneration"].(int64)
		switch {
		case !ok:
		case observed >= copied.GetGeneration():
			in["observedGeneration"] = generation
		default:
			in["observedGeneration"] = max(generation-1, 0)
		}
	}
	translate(out)
	conditions, _ := out["conditions"].([]any)
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok {
			translate(c)
		}
	}
	return out
}

// StatusDigest returns a digest of the status of an object.
func StatusDigest(object *unstructured.Unstructured) string {
	content, err := json.Marshal(object.Object["status"])
	if err != nil {
		return "" // it was JSON before
	}
	return digest(content)
}
