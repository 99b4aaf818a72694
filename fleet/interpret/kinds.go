// Package interpret is what the fleet knows of each kind: how its replicas
// divide, what else it needs, what of it must not leave the control plane, how
// it fares, and how the statuses of many clusters become one.
//
// It is pure: objects in, answers out. A kind is one row of a table; knowing
// another kind means adding a row.
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
	// Placed kinds are placed by policy. Others go where their users go.
	Placed bool
	// DefaultMode is how a placed kind runs unless a policy says otherwise.
	DefaultMode Mode
	// Divided kinds have a replica count that clusters can share.
	Divided bool
	// Single kinds run in exactly one cluster, whatever a policy says.
	Single bool
	// KeepsData marks what holds state that the control plane does not have. It is
	// taken out of a cluster only when it is deleted, never because it moved.
	KeepsData bool
	// Opaque kinds hold what only the clusters that run their users read. By its
	// metadata alone all questions of this package about such an object can be
	// answered; only Prepare, which copies it, wants it whole.
	Opaque bool

	template     []string // path of the pod template, if there is one
	scale        *Scale   // where the replicas are, if not in spec.replicas
	undivided    string   // why it cannot be divided, where that needs a word
	follows      func(obj *unstructured.Unstructured) ([]Attachment, error)
	needs        func(obj *unstructured.Unstructured, out *refs)
	prepare      func(obj map[string]any)
	share        func(obj map[string]any, share Share) // what depends on the cluster besides the replica count
	health       func(obj *unstructured.Unstructured) (v1alpha1.Health, string)
	finished     func(obj *unstructured.Unstructured) bool
	aggregate    func(obj *unstructured.Unstructured, members []Member) (map[string]any, error)
	notGenerated bool // the API server does not count generations of this kind
}

// GVR gives the resource as clients address it.
func (k Kind) GVR() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// Kinds gives all known kinds, those that others need first: applied in this
// order, nothing waits for what comes later.
func Kinds() []Kind {
	return []Kind{
		{GroupVersionKind: kind("", "v1", "ServiceAccount"), Resource: "serviceaccounts",
			needs: serviceAccountNeeds, prepare: prepareServiceAccount, notGenerated: true},
		{GroupVersionKind: kind("", "v1", "ConfigMap"), Resource: "configmaps", Opaque: true, notGenerated: true},
		{GroupVersionKind: kind("", "v1", "Secret"), Resource: "secrets", notGenerated: true},
		{GroupVersionKind: kind("", "v1", "PersistentVolumeClaim"), Resource: "persistentvolumeclaims", KeepsData: true,
			prepare: prepareClaim, health: claimHealth, aggregate: aggregateClaim, notGenerated: true},
		{GroupVersionKind: kind("", "v1", "Service"), Resource: "services",
			follows: serviceFollows, prepare: prepareService, health: serviceHealth, aggregate: aggregateService, notGenerated: true},
		{GroupVersionKind: kind("apps", "v1", "Deployment"), Resource: "deployments", Placed: true, DefaultMode: Divided, Divided: true,
			template: []string{"spec", "template"}, health: deploymentHealth, aggregate: aggregateDeployment},
		{GroupVersionKind: kind("apps", "v1", "StatefulSet"), Resource: "statefulsets", Placed: true, DefaultMode: Single,
			template: []string{"spec", "template"}, needs: statefulSetNeeds, prepare: prepareStatefulSet,
			health: statefulSetHealth, aggregate: aggregateStatefulSet},
		{GroupVersionKind: kind("apps", "v1", "DaemonSet"), Resource: "daemonsets", Placed: true, DefaultMode: Duplicated,
			template: []string{"spec", "template"}, health: daemonSetHealth, aggregate: aggregateDaemonSet},
		{GroupVersionKind: kind("batch", "v1", "Job"), Resource: "jobs", Placed: true, DefaultMode: Single,
			template: []string{"spec", "template"}, prepare: prepareJob,
			health: jobHealth, finished: jobFinished, aggregate: aggregateJob},
		{GroupVersionKind: kind("batch", "v1", "CronJob"), Resource: "cronjobs", Placed: true, DefaultMode: Single,
			template: []string{"spec", "jobTemplate", "spec", "template"}, aggregate: aggregateCronJob},
	}
}

// Find gives what is known of a kind, by group and kind.
func Find(gk schema.GroupKind) (Kind, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.GroupKind() == gk })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

func kind(group, version, name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: name}
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

// Replicas gives the replica count that a divided kind asks for.
func (k Kind) Replicas(obj *unstructured.Unstructured) (int32, bool) {
	if !k.Divided {
		return 0, false
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
	if k.template == nil {
		return nil
	}
	labels, _, _ := unstructured.NestedStringMap(obj.Object, append(slices.Clone(k.template), "metadata", "labels")...)
	return labels
}
