// Package capacity summarizes the nodes of a cluster, and computes how many pods they have room for.
//
// A cluster may have thousands of nodes, and placement examines a thousand clusters for each object. So
// nodes that are equal for pods are counted as one shape, and a summary has tens of them. It never
// promises more room than there is: it rounds down.
package capacity

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	mostShapes  = 64
	mostClasses = 16
	// mostValues is how many values a label may have that distinguishes shapes. Labels with more are names.
	mostValues = mostClasses
	// mostPending bounds the pods without a node that are taken into account.
	mostPending = 1000
)

// Node is a node with what its pods request together.
type Node struct {
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable corev1.ResourceList
	Requested   corev1.ResourceList
	Pods        int64
}

// Amounts are amounts of resources by name: CPU in thousandths, everything else in units.
type Amounts map[corev1.ResourceName]int64

// AmountsOf converts a resource list.
func AmountsOf(list corev1.ResourceList) Amounts {
	out := make(Amounts, len(list))
	for name, q := range list {
		if name == corev1.ResourceCPU {
			out[name] = q.MilliValue()
		} else {
			out[name] = q.Value()
		}
	}
	return out
}

func (a Amounts) list() corev1.ResourceList {
	out := make(corev1.ResourceList, len(a))
	for name, n := range a {
		switch name {
		case corev1.ResourceCPU:
			out[name] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			out[name] = *resource.NewQuantity(n, resource.BinarySI)
		default:
			out[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return out
}

// times returns how many times need fits into a. A resource that a does not have is not there.
func (a Amounts) times(need Amounts) int64 {
	most := int64(unbounded)
	for name, n := range need {
		if n > 0 {
			most = min(most, max(0, a[name])/n)
		}
	}
	return most
}

// unbounded is more pods than any cluster runs.
const unbounded = 1 << 40

// node is a Node while it is summarized.
type node struct {
	labels map[string]string
	taints []corev1.Taint
	all    Amounts
	free   Amounts
	class  string
}

// Summarize returns the shapes of nodes that accept pods, less what pods have requested, also those that wait
// for a node and would fit. It returns nil without nodes.
func Summarize(nodes []Node, pending []corev1.ResourceList) *v1alpha1.NodeShapes {
	list := make([]*node, 0, len(nodes))
	for _, n := range nodes {
		x := &node{labels: n.Labels, all: AmountsOf(n.Allocatable), free: AmountsOf(n.Allocatable)}
		for name, q := range AmountsOf(n.Requested) {
			if _, has := x.free[name]; has {
				x.free[name] = max(0, x.free[name]-q)
			}
		}
		x.free[corev1.ResourcePods] = max(0, x.free[corev1.ResourcePods]-n.Pods)
		for _, t := range n.Taints {
			if t.Effect != corev1.TaintEffectPreferNoSchedule {
				x.taints = append(x.taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
			}
		}
		slices.SortFunc(x.taints, func(a, b corev1.Taint) int {
			return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value), strings.Compare(string(a.Effect), string(b.Effect)))
		})
		list = append(list, x)
	}
	if len(list) == 0 {
		return nil
	}
	reserve(list, pending)
	out := &v1alpha1.NodeShapes{}
	var keys []string
	out.Labels, keys, out.Varying = labelsOf(list)
	keys, dropped := classify(list, keys)
	out.Varying = append(out.Varying, dropped...)
	slices.Sort(out.Varying)
	for _, members := range grouped(list) {
		out.Shapes = append(out.Shapes, shapeOf(members, keys))
	}
	slices.SortFunc(out.Shapes, compareShapes)
	if more := len(out.Shapes) - mostShapes; more > 0 { // the smallest are not promised
		out.Shapes = out.Shapes[:mostShapes]
	}
	return out
}

// reserve takes the room of pods that have no node yet, so that it is not given away a second time. A pod that
// fits nowhere takes none.
func reserve(nodes []*node, pending []corev1.ResourceList) {
	for _, requests := range pending[:min(len(pending), mostPending)] {
		need := AmountsOf(requests)
		need[corev1.ResourcePods] = 1
		for _, n := range nodes {
			if n.free.times(need) > 0 {
				for name, q := range need {
					n.free[name] -= q
				}
				break
			}
		}
	}
}

// labelsOf returns the labels that all nodes have, the keys of those that distinguish them, and the keys of those
// with so many values that they are names.
func labelsOf(nodes []*node) (common map[string]string, keys, varying []string) {
	values := map[string]map[string]int{}
	for _, n := range nodes {
		for key, value := range n.labels {
			if values[key] == nil {
				values[key] = map[string]int{}
			}
			if len(values[key]) <= mostValues {
				values[key][value]++
			}
		}
	}
	common = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		all := values[key]
		value := slices.Collect(maps.Keys(all))[0]
		switch {
		case key == corev1.LabelHostname, len(all) > mostValues:
			varying = append(varying, key)
		case len(all) == 1 && all[value] == len(nodes):
			common[key] = value
		default:
			keys = append(keys, key)
		}
	}
	return common, keys, varying
}

// classify sets the classes of nodes: equal resources, taints and labels of the keys. If there are too many, the
// keys with the most values are dropped, and returned.
func classify(nodes []*node, keys []string) (kept, dropped []string) {
	for {
		classes := map[string]bool{}
		values := map[string]map[string]bool{}
		for _, n := range nodes {
			var b strings.Builder
			for _, name := range slices.Sorted(maps.Keys(n.all)) {
				b.WriteString(string(name) + "=" + strconv.FormatInt(n.all[name], 10) + ";")
			}
			for _, t := range n.taints {
				b.WriteString(t.ToString() + ";")
			}
			for _, key := range keys {
				value, has := n.labels[key]
				b.WriteString(strconv.FormatBool(has) + value + ";")
				if values[key] == nil {
					values[key] = map[string]bool{}
				}
				values[key][value] = true
			}
			n.class = b.String()
			classes[n.class] = true
		}
		if len(classes) <= mostClasses || len(keys) == 0 {
			return keys, dropped
		}
		most := slices.MaxFunc(keys, func(a, b string) int { return cmp.Compare(len(values[a]), len(values[b])) })
		dropped = append(dropped, most)
		keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == most })
	}
}

// grouped returns the nodes of each shape: those of a class with equal free room, or, if these are too many, with
// about equal room.
func grouped(nodes []*node) [][]*node {
	for _, steps := range []struct {
		of     int64
		vector bool
	}{{0, true}, {32, true}, {16, true}, {8, true}, {16, false}, {8, false}, {4, false}, {3, false}} {
		groups := map[string][]*node{}
		for _, n := range nodes {
			key := n.class + "/" + n.room(steps.of, steps.vector)
			groups[key] = append(groups[key], n)
		}
		if len(groups) <= mostShapes || steps.of == 3 {
			out := make([][]*node, 0, len(groups))
			for _, key := range slices.Sorted(maps.Keys(groups)) {
				out = append(out, groups[key])
			}
			return out
		}
	}
	return nil
}

// room describes a node's free room: exactly with no steps, else in steps of what it has altogether; of each
// resource, or of the scarcest.
func (n *node) room(steps int64, vector bool) string {
	least := steps
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n.all)) {
		step := n.free[name]
		if steps > 0 {
			step = 0
			if n.all[name] > 0 {
				step = n.free[name] * steps / n.all[name]
				least = min(least, step)
			}
		}
		b.WriteString(strconv.FormatInt(step, 10) + ";")
	}
	if !vector {
		return strconv.FormatInt(least, 10)
	}
	return b.String()
}

// shapeOf returns the shape of nodes of one class. Each of them has at least its free room.
func shapeOf(nodes []*node, keys []string) v1alpha1.NodeShape {
	free := maps.Clone(nodes[0].free)
	for _, n := range nodes[1:] {
		for name := range free {
			free[name] = min(free[name], n.free[name])
		}
	}
	s := v1alpha1.NodeShape{Count: int32(len(nodes)), Allocatable: nodes[0].all.list(), Free: free.list(), Taints: nodes[0].taints}
	for _, key := range keys {
		if value, has := nodes[0].labels[key]; has {
			if s.Labels == nil {
				s.Labels = map[string]string{}
			}
			s.Labels[key] = value
		}
	}
	return s
}

// compareShapes orders shapes: many nodes first, then those with much free CPU.
func compareShapes(a, b v1alpha1.NodeShape) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), b.Free.Cpu().Cmp(*a.Free.Cpu()), b.Free.Memory().Cmp(*a.Free.Memory()),
		b.Free.Pods().Cmp(*a.Free.Pods()), cmp.Compare(labelText(a.Labels), labelText(b.Labels)), cmp.Compare(len(a.Taints), len(b.Taints)))
}

func labelText(labels map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(key + "=" + labels[key] + ",")
	}
	return b.String()
}
