package interpret

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// AsWritten returns a copy of an object of a member cluster as its author may have written it: without
// identity, owners, finalizers and status, without the fields that the cluster set itself, and without
// Atoll's marks. It is the opposite direction of PrepareShare: prepared for the same cluster again, the
// result changes nothing there.
func (k KindInfo) AsWritten(live *unstructured.Unstructured) *unstructured.Unstructured {
	copied := live.DeepCopy()
	out := copied.Object
	delete(out, "status")
	pruneNulls(out)
	for field, value := range out {
		if field != "metadata" {
			withoutIdentity(value)
		}
	}
	if k.prepare != nil {
		k.prepare(out)
	}
	if k.written != nil {
		k.written(out, live)
	}
	meta := map[string]any{"name": live.GetName()}
	if !k.ClusterScoped {
		meta["namespace"] = live.GetNamespace()
	}
	labels := copied.GetLabels()
	maps.DeleteFunc(labels, func(key, _ string) bool { return ownMark(key) })
	annotations := copied.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ownMark(key) || ownAnnotation(key) || clusterAnnotation(key) })
	if len(labels) > 0 {
		meta["labels"] = anyMap(labels)
	}
	if len(annotations) > 0 {
		meta["annotations"] = anyMap(annotations)
	}
	out["metadata"] = meta
	out["apiVersion"], out["kind"] = k.GroupVersion().String(), k.GroupVersionKind.Kind
	return copied
}

// InPodTemplate reports whether a field, by its path from the root, is part of the object's pods: if it
// changes, running pods may be replaced.
func (k KindInfo) InPodTemplate(path []string) bool {
	if k.template == nil || len(path) < len(k.template) {
		return false
	}
	return slices.Equal(path[:len(k.template)], k.template)
}

// clusterAnnotation reports whether controllers of a cluster set an annotation, for this cluster.
func clusterAnnotation(key string) bool {
	switch key {
	case "volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner", leaderAnnotation,
		corev1.EndpointsLastChangeTriggerTime:
		return true
	}
	return false
}

// writtenService removes what a cluster allocated: addresses, their families, and node ports. Those that a
// client set remain, by the managed fields: they record what clients sent, before anything was allocated.
func writtenService(obj map[string]any, live *unstructured.Unstructured) {
	spec := object(obj, "spec")
	if text(spec, "clusterIP") != corev1.ClusterIPNone && !ownedByAny(live, "spec", "clusterIP") {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	for _, field := range []string{"ipFamilies", "healthCheckNodePort"} {
		if !ownedByAny(live, "spec", field) {
			delete(spec, field)
		}
	}
	if spec["ipFamilyPolicy"] == string(corev1.IPFamilyPolicySingleStack) && !ownedByAny(live, "spec", "ipFamilyPolicy") {
		delete(spec, "ipFamilyPolicy")
	}
	for _, port := range items(spec, "ports") {
		if !ownsNodePort(live, port) {
			delete(port, "nodePort")
		}
	}
}

// ownedByAny reports whether a client set a field, by the managed fields.
func ownedByAny(live *unstructured.Unstructured, path ...string) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Subresource == "" && owns(entry, path)
	})
}

// ownsNodePort reports whether a client set the node port of a Service's port.
func ownsNodePort(live *unstructured.Unstructured, port map[string]any) bool {
	number, _ := number(port, "port")
	return slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		var fields struct {
			Spec struct {
				Ports map[string]map[string]any `json:"f:ports"`
			} `json:"f:spec"`
		}
		if entry.FieldsV1 == nil || entry.Subresource != "" || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		for key, owned := range fields.Spec.Ports {
			var of struct {
				Port     int64
				Protocol string
			}
			raw, is := strings.CutPrefix(key, "k:")
			if _, set := owned["f:nodePort"]; !is || !set || json.Unmarshal([]byte(raw), &of) != nil {
				continue
			}
			if of.Port == number && (of.Protocol == "" || of.Protocol == text(port, "protocol")) {
				return true
			}
		}
		return false
	})
}

// writtenPod removes the node, unless a client set it: the cluster's scheduler chose it.
func writtenPod(obj map[string]any, live *unstructured.Unstructured) {
	if !ownedByAny(live, "spec", "nodeName") {
		unstructured.RemoveNestedField(obj, "spec", "nodeName")
	}
}

// writtenJob keeps the time after which a finished Job is deleted: only copies in clusters are without it.
func writtenJob(obj map[string]any, live *unstructured.Unstructured) {
	if ttl, found := number(live.Object, "spec", "ttlSecondsAfterFinished"); found {
		setNested(obj, ttl, "spec", "ttlSecondsAfterFinished")
	}
}
