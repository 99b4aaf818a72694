// Package interpret is what the fleet knows of each kind: on how many clusters an
// object runs, how its replicas divide, what else it needs and what it goes along
// with, what of it must not leave the control plane, how it fares, and how the
// statuses of many clusters become one.
//
// It is pure: objects in, answers out. A kind is one row of a table; knowing
// another kind means adding a row. What is not in the table is interpreted by what
// most kinds have in common (Generic), and people teach the rest with expressions
// (Teach). docs/kinds.md is the table for people; DESIGN.md says why it is so.
package interpret

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Kind is what is known of one kind.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the name in URLs: "deployments".
	Resource string
	// ClusterScoped kinds have no namespace.
	ClusterScoped bool
	// Placed kinds are placed by policy. Others go where their users go, and where
	// what they follow goes.
	Placed bool
	// DefaultMode is how a placed kind runs unless a policy says otherwise.
	DefaultMode Mode
	// Divided kinds have a replica count that clusters can share. Not every object of
	// such a kind has: see Allows.
	Divided bool
	// Single kinds run in exactly one cluster, whatever a policy says.
	Single bool
	// KeepsData marks what holds state that the control plane does not have. It is
	// taken out of a cluster only when it is deleted, never because it moved.
	KeepsData bool
	// Custom kinds are in the table, and yet API servers have them from a
	// CustomResourceDefinition, which their objects need.
	Custom bool
	// Opaque kinds hold what only the clusters that run their users read. By its
	// metadata alone all questions of this package about such an object can be
	// answered; only Prepare, which copies it, wants it whole.
	Opaque bool
	// Origin says where the knowledge is from: see the Origin constants.
	Origin string
	// Words say the same for people, as far as the fields above do not.
	Words Words

	template     []string // path of the pod template, if there is one; empty, not nil, if the object is a pod
	scale        *Scale   // where the replicas are, if not in spec.replicas
	replicas     func(obj *unstructured.Unstructured) (int32, bool)
	podLabels    func(obj *unstructured.Unstructured) map[string]string
	indivisible  func(obj *unstructured.Unstructured) string
	needs        func(obj *unstructured.Unstructured, out *refs) error
	follows      func(obj *unstructured.Unstructured, out *attachments) error
	prepare      func(obj map[string]any)
	share        func(obj map[string]any, share Share) // what depends on the cluster besides the replica count
	health       func(obj *unstructured.Unstructured) (v1alpha1.Health, string)
	finished     func(obj *unstructured.Unstructured) bool
	aggregate    func(k Kind, obj *unstructured.Unstructured, members []Member) (map[string]any, error)
	notGenerated bool // the API server does not count generations of this kind
}

// Words describe a kind to people: docs/kinds.md is made of them.
type Words struct {
	Needs, Follows, Left, Health, Status string
}

// Where knowledge of a kind is from.
const (
	// OriginBuiltIn: a row of the table.
	OriginBuiltIn = "built in"
	// OriginGeneric: nobody taught it; it is taken for what most kinds are.
	OriginGeneric = "generic"
	// OriginTaught, followed by the name of the ResourceInterpretation.
	OriginTaught = "taught by "
)

// GVR gives the resource as clients address it.
func (k Kind) GVR() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// Find gives what the table knows of a kind, by group and kind. Who asks often
// keeps a Knowledge instead, which also has what was added.
func Find(gk schema.GroupKind) (Kind, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.GroupKind() == gk })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// Health tells how an object of a member cluster fares, and why not well. Kinds
// that cannot fail are healthy once they exist.
func (k Kind) Health(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	if k.health == nil {
		return v1alpha1.Healthy, ""
	}
	if observed, ok := k.ObservedGeneration(obj); ok && observed < obj.GetGeneration() {
		return v1alpha1.Progressing, "the cluster has not acted on the latest change yet"
	}
	return k.health(obj)
}

// ObservedGeneration gives the generation that the controllers of the object's
// cluster acted on. It is false where the kind does not report one.
func (k Kind) ObservedGeneration(obj *unstructured.Unstructured) (int64, bool) {
	if k.notGenerated {
		return 0, false
	}
	observed, found, err := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	if err != nil || !found {
		// A kind that reports it omits it until its controller has looked once.
		return 0, k.Group == "apps"
	}
	return observed, true
}

// Finished tells whether an object has done its work for good, so that no other
// cluster should begin it again.
func (k Kind) Finished(obj *unstructured.Unstructured) bool {
	return k.finished != nil && k.finished(obj)
}

// Replicas gives the count that an object of a divided kind asks for. It is false
// where the object cannot be divided.
func (k Kind) Replicas(obj *unstructured.Unstructured) (int32, bool) {
	if !k.Divided || k.indivisible != nil && k.indivisible(obj) != "" {
		return 0, false
	}
	if k.replicas != nil {
		return k.replicas(obj)
	}
	n, found, err := unstructured.NestedInt64(obj.Object, k.replicasPath()...)
	if err != nil || !found {
		return 1, true // the default of every kind that has the field
	}
	return int32(n), true
}

func (k Kind) replicasPath() []string {
	if k.scale != nil {
		return k.scale.Replicas
	}
	return []string{"spec", "replicas"}
}

// PodLabels gives the labels of the pods that the object makes.
func (k Kind) PodLabels(obj *unstructured.Unstructured) map[string]string {
	if k.podLabels != nil {
		return k.podLabels(obj)
	}
	if k.template == nil {
		return nil
	}
	labels, _, _ := unstructured.NestedStringMap(obj.Object, append(slices.Clone(k.template), "metadata", "labels")...)
	return labels
}
