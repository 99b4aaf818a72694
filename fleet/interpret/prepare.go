package interpret

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Prepare gives the object as one cluster should have it, where nothing but the
// replica count depends on the cluster: see PrepareShare.
func (k Kind) Prepare(obj *unstructured.Unstructured, cluster string, replicas *int32) *unstructured.Unstructured {
	return k.PrepareShare(obj, Share{Cluster: cluster, Replicas: replicas})
}

// PrepareShare gives the object as one cluster should have it: a new object
// without what belongs to the control plane (identity, owners, finalizers,
// status) and without what each cluster decides for itself. Fields that are left
// out are retained in the member by server-side apply, because the syncer does
// not own them.
func (k Kind) PrepareShare(obj *unstructured.Unstructured, share Share) *unstructured.Unstructured {
	copied := obj.DeepCopy()
	out := copied.Object
	delete(out, "status")
	pruneNulls(out)
	if k.Divided {
		k.setReplicas(out, share)
	}
	if k.prepare != nil {
		k.prepare(out)
	}
	if k.share != nil {
		k.share(out, share)
	}
	out["metadata"] = k.metadata(copied, share.Cluster)
	out["apiVersion"], out["kind"] = k.GroupVersion().String(), k.GroupVersionKind.Kind
	return copied
}

// metadata keeps of an object's metadata what a member should have, and adds our
// marks.
func (k Kind) metadata(obj *unstructured.Unstructured, cluster string) map[string]any {
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

// ownAnnotation tells whether an annotation says something about the object in
// the control plane only.
func ownAnnotation(key string) bool {
	return key == corev1.LastAppliedConfigAnnotation ||
		key == "deployment.kubernetes.io/revision" ||
		key == "deprecated.daemonset.template.generation" ||
		key == v1alpha1.AdoptAnnotation ||
		// What has no field in v1 of an autoscaler's status.
		key == "autoscaling.alpha.kubernetes.io/conditions" || key == "autoscaling.alpha.kubernetes.io/current-metrics" ||
		strings.HasPrefix(key, "pv.kubernetes.io/") ||
		strings.HasPrefix(key, "volume.kubernetes.io/selected-node")
}

func prepareServiceAccount(obj map[string]any) { delete(obj, "secrets") }

// prepareService leaves addresses and node ports to each cluster: they are
// allocated from ranges that no two clusters share.
func prepareService(obj map[string]any) {
	spec, ok := obj["spec"].(map[string]any)
	if !ok {
		return
	}
	if spec["clusterIP"] != corev1.ClusterIPNone {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		delete(spec, "ipFamilies")
		// SingleStack is what the control plane fills in; more is a wish of the user.
		if spec["ipFamilyPolicy"] == string(corev1.IPFamilyPolicySingleStack) {
			delete(spec, "ipFamilyPolicy")
		}
	}
	delete(spec, "healthCheckNodePort")
	for _, port := range items(spec, "ports") {
		delete(port, "nodePort")
	}
}

func prepareStatefulSet(obj map[string]any) {
	for _, claim := range items(obj, "spec", "volumeClaimTemplates") {
		delete(claim, "status")
	}
}

// prepareEndpoints leaves out what points to objects of the control plane.
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

// prepareJob leaves the selector to each cluster's job controller, which ties it
// to the UID that the Job has there.
func prepareJob(obj map[string]any) {
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

// NamespaceMarks gives the labels and annotations of a namespace that its
// counterpart in a member should have: what admission and network policies there
// go by.
func NamespaceMarks(ns *unstructured.Unstructured) (labels, annotations map[string]string) {
	labels, annotations = maps.Clone(ns.GetLabels()), maps.Clone(ns.GetAnnotations())
	// Each API server sets this one itself.
	delete(labels, corev1.LabelMetadataName)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownAnnotation(key) })
	maps.DeleteFunc(labels, func(key, _ string) bool { return ownMark(key) })
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownMark(key) })
	return labels, annotations
}

// ownMark tells whether a label or annotation is one that the fleet goes by.
func ownMark(key string) bool { return strings.HasPrefix(key, v1alpha1.Group+"/") }

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}
