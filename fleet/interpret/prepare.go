package interpret

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Prepare is PrepareShare for objects of which only the replica count depends on the cluster.
func (k KindInfo) Prepare(obj *unstructured.Unstructured, cluster string, replicas *int32) *unstructured.Unstructured {
	return k.PrepareShare(obj, Share{Cluster: cluster, Replicas: replicas})
}

// PrepareShare returns a copy of the object for one cluster. It omits the fields that belong to the
// control plane (identity, owners, finalizers, status), and those that each cluster sets itself.
// The syncer does not own omitted fields, so server-side apply retains them in the member.
func (k KindInfo) PrepareShare(obj *unstructured.Unstructured, share Share) *unstructured.Unstructured {
	copied := k.content(obj, func(out map[string]any) {
		if k.Divided {
			k.setReplicas(out, share)
		}
	})
	if k.share != nil {
		k.share(copied.Object, share)
	}
	copied.Object["metadata"] = k.metadata(copied, share.Cluster)
	return copied
}

// Content returns a copy of the object for another control plane, which decides about its clusters. It omits the same fields as PrepareShare, and
// has the labels and annotations of the user alone.
func (k KindInfo) Content(obj *unstructured.Unstructured) *unstructured.Unstructured {
	copied := k.content(obj, func(map[string]any) {})
	labels, annotations := copied.GetLabels(), copied.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownAnnotation(key) })
	copied.Object["metadata"] = map[string]any{"name": obj.GetName(), "namespace": obj.GetNamespace()}
	copied.SetLabels(labels)
	copied.SetAnnotations(annotations)
	return copied
}

// content returns a copy of the object without the fields that belong to the control plane or that each cluster sets. replicas sets its replicas.
func (k KindInfo) content(obj *unstructured.Unstructured, replicas func(map[string]any)) *unstructured.Unstructured {
	copied := obj.DeepCopy()
	out := copied.Object
	delete(out, "status")
	pruneNulls(out)
	for field, value := range out {
		if field != "metadata" {
			withoutIdentity(value)
		}
	}
	replicas(out)
	if k.prepare != nil {
		k.prepare(out)
	}
	out["apiVersion"], out["kind"] = k.GroupVersion().String(), k.GroupVersionKind.Kind
	return copied
}

// metadata returns the object's metadata for a member, with Atoll's marks.
func (k KindInfo) metadata(obj *unstructured.Unstructured, cluster string) map[string]any {
	meta := map[string]any{"name": obj.GetName()}
	if !k.ClusterScoped {
		meta["namespace"] = obj.GetNamespace()
	}
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.ManagedLabel] = "true"
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownAnnotation(key) })
	annotations[v1alpha1.ClusterAnnotation] = cluster
	annotations[v1alpha1.SourceUIDAnnotation] = string(obj.GetUID())
	meta["labels"], meta["annotations"] = anyMap(labels), anyMap(annotations)
	return meta
}

// identity lists the metadata that means something only where an object is stored. Controllers copy
// whole metadata into templates. In a member, such an owner does not exist, so its garbage collector
// would delete the claim of a running database; and no controller there removes such a finalizer.
func identity() []string {
	return []string{"ownerReferences", "finalizers", "managedFields", "uid", "resourceVersion", "generation",
		"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"}
}

// withoutIdentity removes the identity from the metadata of all objects and templates inside a value:
// pod templates, claim templates, manifests in custom resources.
func withoutIdentity(value any) {
	switch v := value.(type) {
	case map[string]any:
		if meta, ok := v["metadata"].(map[string]any); ok && embedsObject(v) {
			for _, field := range identity() {
				delete(meta, field)
			}
		}
		for _, inner := range v {
			withoutIdentity(inner)
		}
	case []any:
		for _, inner := range v {
			withoutIdentity(inner)
		}
	}
}

// embedsObject reports whether the field metadata of m is that of an object, and not some field of
// that name in a custom resource.
func embedsObject(m map[string]any) bool {
	_, template := m["spec"].(map[string]any)
	return template || text(m, "apiVersion") != "" && text(m, "kind") != ""
}

// ownAnnotation reports whether an annotation concerns only the control plane's object.
func ownAnnotation(key string) bool {
	return key == corev1.LastAppliedConfigAnnotation ||
		key == "deployment.kubernetes.io/revision" ||
		key == "deprecated.daemonset.template.generation" ||
		key == v1alpha1.AdoptAnnotation || key == v1alpha1.ClusterIPsAnnotation ||
		// Status fields that v1 of an autoscaler keeps in annotations.
		key == "autoscaling.alpha.kubernetes.io/conditions" || key == "autoscaling.alpha.kubernetes.io/current-metrics" ||
		strings.HasPrefix(key, "pv.kubernetes.io/") ||
		strings.HasPrefix(key, "volume.kubernetes.io/selected-node")
}

func prepareServiceAccount(obj map[string]any) { delete(obj, "secrets") }

// prepareService omits the address that the control plane only shows. Each cluster allocates its own,
// as it does node ports. The control plane allocates none of these, so an address outside that range, a
// node port or an IP family is the author's, and is applied. A cluster where it is taken, or out of
// range, rejects the Service with the reason.
func prepareService(obj map[string]any) {
	spec, ok := obj["spec"].(map[string]any)
	if !ok {
		return
	}
	if ip := text(spec, "clusterIP"); ip == "" || v1alpha1.IsServiceAddress(ip) {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		// The control plane sets SingleStack by default; any other value is the user's.
		if spec["ipFamilyPolicy"] == string(corev1.IPFamilyPolicySingleStack) {
			delete(spec, "ipFamilyPolicy")
		}
	}
}

func prepareStatefulSet(obj map[string]any) {
	for _, claim := range items(obj, "spec", "volumeClaimTemplates") {
		delete(claim, "status")
	}
}

// prepareEndpoints omits references to objects of the control plane.
func prepareEndpoints(obj map[string]any) {
	for _, subset := range items(obj, "subsets") {
		for _, field := range []string{"addresses", "notReadyAddresses"} {
			for _, address := range items(subset, field) {
				delete(address, "targetRef")
				delete(address, "nodeName")
			}
		}
	}
}

// prepareJob leaves the selector to each cluster's Job controller, which derives it from the UID of
// the Job there. It omits ttlSecondsAfterFinished: a cluster would delete the Job before the control
// plane knows that it has finished, if it cannot report for that long. The control plane deletes its
// own Job when the time is over, and so the copies.
func prepareJob(obj map[string]any) {
	unstructured.RemoveNestedField(obj, "spec", "ttlSecondsAfterFinished")
	if manual, _, _ := unstructured.NestedBool(obj, "spec", "manualSelector"); manual {
		return
	}
	unstructured.RemoveNestedField(obj, "spec", "selector")
	for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid"} {
		unstructured.RemoveNestedField(obj, "metadata", "labels", label)
		unstructured.RemoveNestedField(obj, "spec", "template", "metadata", "labels", label)
	}
	for _, label := range []string{"job-name", "batch.kubernetes.io/job-name"} {
		unstructured.RemoveNestedField(obj, "spec", "template", "metadata", "labels", label)
	}
}

// ownMark reports whether a label or annotation belongs to the fleet.
func ownMark(key string) bool { return strings.HasPrefix(key, v1alpha1.Group+"/") }

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}
