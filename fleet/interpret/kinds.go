// Package interpret interprets the kinds of the fleet: in how many clusters an object runs, how its
// replicas divide, which objects it needs and follows, which objects stay in the control plane, how
// healthy an object is, and how the statuses of many clusters become one.
//
// It is pure: objects in, results out. A kind is one row of a table, and supporting another kind
// means adding a row. A kind that is not in the table is interpreted by common conventions
// (Generic), and users can customize every kind with expressions (ParseCustomization).
// docs/kinds.md is the table for users. DESIGN.md explains the choices.
package interpret

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// KindInfo is how objects of one kind are interpreted.
type KindInfo struct {
	schema.GroupVersionKind
	// Resource is the name in URLs: "deployments".
	Resource string
	// ClusterScoped kinds have no namespace.
	ClusterScoped bool
	// Placed kinds are placed by policy. Others run where their users and the objects that they
	// follow run.
	Placed bool
	// DefaultMode is how a placed kind runs unless a policy says otherwise.
	DefaultMode Mode
	// Divided kinds have a replica count that clusters can share. Not every object of such a kind
	// can be divided: see CheckMode.
	Divided bool
	// Single kinds run in exactly one cluster, whatever a policy says.
	Single bool
	// Configuration marks kinds of a namespace that programs read through the API, or that pods of
	// operators use, without any object that names them. They go wherever the namespace's workloads
	// run, unless GoesWithNamespace excludes the object. A cluster-scoped kind goes wherever any
	// workloads run.
	Configuration bool
	// KeepsData marks kinds with state that the control plane does not have. An object of such a
	// kind leaves a cluster only when it is deleted, never because it moved.
	KeepsData bool
	// Custom kinds are in the table, but API servers have them from a CustomResourceDefinition,
	// which their objects need.
	Custom bool
	// Opaque kinds hold content that only their users in the clusters read. This package can
	// interpret such an object by its metadata alone. Only Prepare, which copies it, needs the
	// complete object.
	Opaque bool
	// Origin is the source of the interpretation: see the Origin constants.
	Origin string
	// Descriptions explain to users what the fields above do not show.
	Descriptions Descriptions

	template     []string // path of the pod template, if there is one; empty, not nil, if the object is a pod
	scale        *Scale   // where the replicas are, if not in spec.replicas
	replicas     func(obj *unstructured.Unstructured) (int32, bool)
	podLabels    func(obj *unstructured.Unstructured) map[string]string
	indivisible  func(obj *unstructured.Unstructured) string
	needs        func(obj *unstructured.Unstructured, out *refs) error
	follows      func(obj *unstructured.Unstructured, out *attachments) error
	chooses      func(obj *unstructured.Unstructured, out *choices) error
	properties   func(obj *unstructured.Unstructured) map[string]string
	prepare      func(obj map[string]any)
	written      func(obj map[string]any, live *unstructured.Unstructured) // what prepare does not do for AsWritten
	share        func(obj map[string]any, share Share)                     // cluster-specific fields, apart from the replica count
	components   func(obj *unstructured.Unstructured) ([]Component, error)
	health       func(obj *unstructured.Unstructured) (v1alpha1.Health, string)
	lacksPods    func(obj *unstructured.Unstructured) bool
	finished     func(obj *unstructured.Unstructured) bool
	lost         func(status map[string]any, now metav1.Time) (map[string]any, error)
	aggregate    func(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error)
	asker        *asker // asks the webhook of the kind; nil if it has none
	notGenerated bool   // the API server does not count generations of this kind
}

// Descriptions describe a kind to users, in docs/kinds.md.
type Descriptions struct {
	Needs, Follows, Left, Health, Status string
}

// Sources of an interpretation.
const (
	// OriginBuiltIn: a row of the table.
	OriginBuiltIn = "built in"
	// OriginGeneric: by common conventions.
	OriginGeneric = "generic"
	// OriginCustomized, followed by the name of the ResourceInterpretation.
	OriginCustomized = "customized by "
)

// GVR returns the kind's resource.
func (k KindInfo) GVR() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// Find returns a row of the built-in table. For frequent lookups keep a Catalog instead, which also
// has the kinds that were added.
func Find(gk schema.GroupKind) (KindInfo, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k KindInfo) bool { return k.GroupKind() == gk })
	if i < 0 {
		return KindInfo{}, false
	}
	return kinds[i], true
}

// Health returns the health of an object in a member cluster, and a reason if it is not healthy.
// Kinds that cannot fail are healthy once they exist.
func (k KindInfo) Health(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	if k.health == nil {
		return v1alpha1.Healthy, ""
	}
	if observed, ok := k.ObservedGeneration(obj); ok && observed < obj.GetGeneration() {
		return v1alpha1.Progressing, "the cluster has not acted on the latest change yet"
	}
	return k.health(obj)
}

// ObservedGeneration returns the generation that the cluster's controllers have acted on. It
// returns false if the kind does not report one.
func (k KindInfo) ObservedGeneration(obj *unstructured.Unstructured) (int64, bool) {
	if k.notGenerated {
		return 0, false
	}
	observed, found := generation(object(obj.Object, "status"))
	if !found {
		// A kind that reports it omits it until its controller has run once.
		return 0, k.Group == "apps"
	}
	return observed, true
}

// Finished reports whether an object has completed its work for good, so that no other cluster
// should start it again.
func (k KindInfo) Finished(obj *unstructured.Unstructured) bool {
	return k.finished != nil && k.finished(obj)
}

// Replicas returns the requested replica count of an object of a divided kind. It returns false if
// the object cannot be divided.
func (k KindInfo) Replicas(obj *unstructured.Unstructured) (int32, bool) {
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

func (k KindInfo) replicasPath() []string {
	if k.scale != nil {
		return k.scale.Replicas
	}
	return []string{"spec", "replicas"}
}

// PodLabels returns the labels of the pods that the object creates.
func (k KindInfo) PodLabels(obj *unstructured.Unstructured) map[string]string {
	if k.podLabels != nil {
		return k.podLabels(obj)
	}
	if k.template == nil {
		return nil
	}
	labels, _, _ := unstructured.NestedStringMap(obj.Object, append(slices.Clone(k.template), "metadata", "labels")...)
	return labels
}
