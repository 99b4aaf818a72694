package interpret

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ReplicasPath gives where a divided kind keeps its replica count, as field names
// from the root; nil if it has none.
func (k Kind) ReplicasPath() []string {
	if !k.Divided {
		return nil
	}
	return k.replicasPath()
}

// MakesPods tells whether objects of the kind make pods.
func (k Kind) MakesPods() bool { return k.template != nil }

// NamespaceMarks gives the labels and annotations of a namespace that its
// counterpart in a member should have.
func NamespaceMarks(ns *unstructured.Unstructured) (labels, annotations map[string]string) {
	labels, annotations = maps.Clone(ns.GetLabels()), maps.Clone(ns.GetAnnotations())
	delete(labels, corev1.LabelMetadataName)
	own := func(key, _ string) bool { return ownAnnotation(key) || strings.HasPrefix(key, v1alpha1.Group+"/") }
	maps.DeleteFunc(labels, own)
	maps.DeleteFunc(annotations, own)
	return labels, annotations
}
