package capacity

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Acceptable reports whether a summary that a syncer sends is within the bounds of Summarize.
func Acceptable(s *v1alpha1.NodeShapes) bool {
	const most = 256 // labels, taints and resources of a node
	if len(s.Shapes) > mostShapes || len(s.Labels) > most || len(s.Varying) > most {
		return false
	}
	for i := range s.Shapes {
		n := &s.Shapes[i]
		if n.Count < 1 || len(n.Labels) > most || len(n.Taints) > most || !amountsAcceptable(n.Allocatable, most) || !amountsAcceptable(n.Free, most) {
			return false
		}
	}
	return true
}

func amountsAcceptable(list corev1.ResourceList, most int) bool {
	for _, q := range list {
		if q.Sign() < 0 {
			return false
		}
	}
	return len(list) <= most
}

// SameNodes reports whether two summaries are of the same nodes, perhaps with other free room.
func SameNodes(a, b *v1alpha1.NodeShapes) bool {
	return equality.Semantic.DeepEqual(withoutFree(a), withoutFree(b))
}

// sameKinds reports whether two summaries have nodes of the same kinds, whatever their numbers.
func sameKinds(a, b *v1alpha1.NodeShapes) bool {
	first, second := withoutFree(a), withoutFree(b)
	if len(first) != len(second) {
		return false
	}
	for kind := range first {
		if _, has := second[kind]; !has {
			return false
		}
	}
	return true
}

// withoutFree returns how many nodes there are of each kind.
func withoutFree(s *v1alpha1.NodeShapes) map[string]int32 {
	out := map[string]int32{}
	for key, value := range s.Labels {
		out["label "+key+"="+value] = 1
	}
	for _, key := range s.Varying {
		out["varying "+key] = 1
	}
	for i := range s.Shapes {
		n := &s.Shapes[i]
		key := labelText(n.Labels)
		for _, t := range n.Taints {
			key += t.ToString() + ","
		}
		for _, name := range slices.Sorted(maps.Keys(n.Allocatable)) {
			q := n.Allocatable[name]
			key += string(name) + "=" + q.String() + ","
		}
		out[key] += n.Count
	}
	return out
}
