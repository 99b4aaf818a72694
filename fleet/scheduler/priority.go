package scheduler

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// priority is how important an object's pods are.
type priority struct {
	value int32
	// preempts: pods of lower priorities may leave clusters for them.
	preempts bool
}

func classKind() schema.GroupKind {
	return schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}
}

// className returns the name of the PriorityClass of an object's pods.
func className(obj *unstructured.Unstructured) string {
	name, _ := interpret.PodSpec(obj.Object)["priorityClassName"].(string)
	return name
}

// priorityOf returns the priority of an object's pods, by its PriorityClass in the control plane. Members may
// have others, with defaults of their own.
func priorityOf(obj *unstructured.Unstructured, class func(name string) (*unstructured.Unstructured, bool)) priority {
	out := priorityOfClass(className(obj), class)
	out.preempts = out.preempts && interpret.PodSpec(obj.Object)["preemptionPolicy"] != string(corev1.PreemptNever)
	return out
}

func priorityOfClass(name string, class func(name string) (*unstructured.Unstructured, bool)) priority {
	switch name {
	case "":
		return priority{}
	case "system-node-critical", "system-cluster-critical":
		return priority{math.MaxInt32, true} // Kubernetes' own, which need no object
	}
	c, exists := class(name)
	if !exists {
		return priority{}
	}
	value, _, _ := unstructured.NestedInt64(c.Object, "value")
	return priority{int32(min(max(value, math.MinInt32), math.MaxInt32)), value > 0 && c.Object["preemptionPolicy"] != string(corev1.PreemptNever)}
}

func (s *scheduler) podPriority(obj *unstructured.Unstructured) priority {
	return priorityOf(obj, func(name string) (*unstructured.Unstructured, bool) {
		return s.Objects.Get(classKind(), types.NamespacedName{Name: name})
	})
}
