package volumes

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Claim is a claim of an object's pods.
type Claim struct {
	// Name of the claim, or of the template.
	Name string
	// Class is the claim's StorageClass; "" if it names none.
	Class string
	// Template: each replica has a claim of its own, made from a template. Otherwise pods mount the claim by its name.
	Template bool
	// Unknown: pods mount the claim, and it is not in the control plane. Its class is not known.
	Unknown bool
	// Replication says how the replication of the volume changes its direction, in mode Replicated.
	Replication *v1alpha1.VolumeReplication
}

// ClaimsOf returns the claims of an object: of its volumeClaimTemplates, and those that its pods mount. pods are the specs
// of its pods, and claim returns a claim of the object's namespace in the control plane. Ephemeral volumes do not count,
// because they end with their pod.
func ClaimsOf(obj map[string]any, pods []map[string]any, claim func(name string) (*unstructured.Unstructured, bool)) (out []Claim) {
	for _, t := range list(obj, "spec", "volumeClaimTemplates") {
		name, _, _ := unstructured.NestedString(t, "metadata", "name")
		out = append(out, Claim{Name: name, Class: classOf(t), Template: true})
	}
	for _, pod := range pods {
		for _, volume := range list(pod, "volumes") {
			name, _, _ := unstructured.NestedString(volume, "persistentVolumeClaim", "claimName")
			if name == "" || slices.ContainsFunc(out, func(c Claim) bool { return c.Name == name && !c.Template }) {
				continue
			}
			c := Claim{Name: name, Unknown: true}
			if found, exists := claim(name); exists {
				c.Class, c.Unknown = classOf(found.Object), false
			}
			out = append(out, c)
		}
	}
	return out
}

// classOf returns the class of a claim or of a template. The annotation is older than the field, and Kubernetes still
// prefers it.
func classOf(claim map[string]any) string {
	annotated, _, _ := unstructured.NestedString(claim, "metadata", "annotations", corev1.BetaStorageClassAnnotation)
	field, _, _ := unstructured.NestedString(claim, "spec", "storageClassName")
	return cmp.Or(annotated, field)
}

// list returns the maps of a list.
func list(obj map[string]any, path ...string) (out []map[string]any) {
	found, _, _ := unstructured.NestedFieldNoCopy(obj, path...)
	items, _ := found.([]any)
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}
