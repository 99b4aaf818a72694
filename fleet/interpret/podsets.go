package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Pods returns the pods of one replica of an object, or of the whole object if it has no replicas, and
// how many replicas run at the same time (0: all). A DaemonSet has none: it runs on the nodes that
// there are for it. Nor does a finished object.
func (k KindInfo) Pods(obj *unstructured.Unstructured) (pods []Component, atOnce int32) {
	if k.GroupKind() == (schema.GroupKind{Group: "apps", Kind: "DaemonSet"}) || k.Finished(obj) {
		return nil, 0
	}
	if parts, err := k.Components(obj); err == nil && len(parts) > 0 {
		return parts, 0
	}
	pod := k.PodSpec(obj)
	if pod == nil {
		return nil, 0
	}
	n := int64(1)
	switch k.GroupKind() {
	case schema.GroupKind{Group: "batch", Kind: "CronJob"}:
		n = workersOf(object(obj.Object, "spec", "jobTemplate", "spec"))
	case schema.GroupKind{Group: "batch", Kind: "Job"}:
		workers := workersOf(object(obj.Object, "spec"))
		if _, divisible := k.Replicas(obj); divisible {
			atOnce = int32(workers)
		} else {
			n = workers
		}
	}
	return []Component{{Replicas: n, Pod: pod}}, atOnce
}

// workersOf returns how many pods a Job with a spec runs at the same time.
func workersOf(job map[string]any) int64 { return count(job, 1, "parallelism") }

// PodSpec returns the spec of the pods that an object makes, or of the pod that it is; nil if there is
// none.
func PodSpec(obj map[string]any) map[string]any {
	for _, path := range [][]string{{"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}, {"spec"}} {
		spec := object(obj, path...)
		if _, has := spec["containers"].([]any); has {
			return spec
		}
	}
	return nil
}

// AllPods returns the pods that run at the same time if an object runs in one cluster, with at least
// some number of replicas.
func (k KindInfo) AllPods(obj *unstructured.Unstructured, replicas int32) []Component {
	pods, atOnce := k.Pods(obj)
	n := int64(1)
	if own, divisible := k.Replicas(obj); divisible {
		n = int64(own)
		if atOnce > 0 {
			n = min(n, int64(atOnce))
		}
	} else if k.Divided && k.GroupKind() != (schema.GroupKind{Group: "batch", Kind: "Job"}) {
		n = count(obj.Object, 1, k.replicasPath()...)
	}
	n = max(n, int64(replicas))
	out := make([]Component, 0, len(pods))
	for _, p := range pods {
		p.Replicas *= n
		out = append(out, p)
	}
	return out
}
