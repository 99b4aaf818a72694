package interpret

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Namespaces are not in the table. They are in clusters for the objects in them, and only a ClusterPlacement that
// names their kind places them by themselves.

// NamespaceKind returns the interpretation of Namespaces. Clusters get their labels and annotations, and nothing else
// of them.
func NamespaceKind() KindInfo {
	return KindInfo{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), Resource: "namespaces", ClusterScoped: true,
		DefaultMode: Duplicated, Origin: OriginBuiltIn, prepare: prepareNamespace, notGenerated: true}
}

// IsNamespace reports whether a kind is that of Namespaces.
func IsNamespace(gk schema.GroupKind) bool { return gk == schema.GroupKind{Kind: "Namespace"} }

// NamespaceObject returns a Namespace that has only the metadata of ns.
func NamespaceObject(ns metav1.Object) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{}}
	out.SetGroupVersionKind(NamespaceKind().GroupVersionKind)
	out.SetName(ns.GetName())
	out.SetUID(ns.GetUID())
	out.SetGeneration(ns.GetGeneration())
	out.SetCreationTimestamp(ns.GetCreationTimestamp())
	out.SetDeletionTimestamp(ns.GetDeletionTimestamp())
	out.SetLabels(maps.Clone(ns.GetLabels()))
	out.SetAnnotations(maps.Clone(ns.GetAnnotations()))
	return out
}

// ReservedNamespace returns why a Namespace is never placed, or "" if it may be.
func ReservedNamespace(name string) string {
	switch {
	case name == metav1.NamespaceDefault:
		return "every cluster has its own Namespace default"
	case strings.HasPrefix(name, "kube-"):
		return "every cluster has its own Namespaces kube-…"
	case IsSystemNamespace(name):
		return "the control plane's own namespaces stay here"
	}
	return ""
}

// NamespaceMetadata returns the labels and annotations of a namespace for its counterpart in a
// member, because admission and network policies in the member depend on them.
func NamespaceMetadata(ns *unstructured.Unstructured) (labels, annotations map[string]string) {
	labels, annotations = maps.Clone(ns.GetLabels()), maps.Clone(ns.GetAnnotations())
	// Each API server sets this one itself.
	delete(labels, corev1.LabelMetadataName)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownAnnotation(key) })
	maps.DeleteFunc(labels, func(key, _ string) bool { return ownMark(key) })
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownMark(key) })
	return labels, annotations
}

func prepareNamespace(obj map[string]any) {
	ns := &unstructured.Unstructured{Object: obj}
	delete(obj, "spec")
	labels, annotations := NamespaceMetadata(ns)
	ns.SetLabels(labels)
	ns.SetAnnotations(annotations)
}
