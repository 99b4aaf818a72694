package capacity

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Demand is what one pod asks of its node. It is immutable, and safe for concurrent use.
type Demand struct {
	requests    Amounts
	needs       []amount // requests as a list, which is read faster
	affinity    nodeaffinity.RequiredNodeAffinity
	selects     []string // the labels that the pod asks for
	tolerations []corev1.Toleration
}

// KeyOf returns a text that is equal for pods whose specs ask the same. It takes a fraction of the time of DemandOf.
func KeyOf(spec map[string]any) string {
	asks := map[string]any{}
	for _, field := range []string{"nodeSelector", "tolerations", "overhead", "resources"} {
		if value := spec[field]; value != nil {
			asks[field] = value
		}
	}
	if affinity, ok := spec["affinity"].(map[string]any); ok && affinity["nodeAffinity"] != nil {
		asks["nodeAffinity"] = affinity["nodeAffinity"]
	}
	for _, field := range []string{"containers", "initContainers"} {
		containers, _ := spec[field].([]any)
		of := make([]any, 0, 2*len(containers))
		for _, c := range containers {
			if container, ok := c.(map[string]any); ok {
				of = append(of, container["resources"], container["restartPolicy"])
			}
		}
		asks[field] = of
	}
	key, err := json.Marshal(asks)
	if err != nil {
		return ""
	}
	return string(key)
}

// DemandOf returns what a pod with a spec asks of its node.
func DemandOf(spec map[string]any) (*Demand, error) {
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod.Spec); err != nil {
		return nil, fmt.Errorf("read a pod's spec: %w", err)
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			limitsAsRequests(&list[i].Resources)
		}
	}
	d := &Demand{requests: AmountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{})),
		affinity: nodeaffinity.GetRequiredNodeAffinity(pod), tolerations: pod.Spec.Tolerations}
	d.requests[corev1.ResourcePods] = 1
	for name, n := range d.requests {
		if n > 0 {
			d.needs = append(d.needs, amount{name, n})
		}
	}
	for name := range pod.Spec.NodeSelector {
		d.selects = append(d.selects, name)
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				d.selects = append(d.selects, e.Key)
			}
			if len(term.MatchFields) > 0 {
				d.selects = append(d.selects, metav1.ObjectNameField)
			}
		}
	}
	return d, nil
}

type amount struct {
	name corev1.ResourceName
	n    int64
}

// timesIn returns how many of the pods fit into some amounts.
func (d *Demand) timesIn(a Amounts) int64 {
	most := int64(unbounded)
	for _, need := range d.needs {
		most = min(most, max(0, a[need.name])/need.n)
	}
	return most
}

// Room is how many pods of one kind a cluster's nodes have room for.
type Room struct {
	// Free is how many fit beside the pods that are there, Ever how many would fit into empty nodes.
	Free, Ever int64
	// Why is why none fits, with Ever 0.
	Why string
}

// limitsAsRequests sets the requests that API servers set in a Pod, though not in the template of one: without a
// request, the limit counts.
func limitsAsRequests(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, has := r.Requests[name]; !has {
			if r.Requests == nil {
				r.Requests = corev1.ResourceList{}
			}
			r.Requests[name] = limit
		}
	}
}

// Nodes are the nodes of a cluster, prepared for many questions. They are immutable, and safe for concurrent use.
type Nodes struct {
	summary *v1alpha1.NodeShapes
	shapes  []shape
}

// shape is a number of equal nodes of a NodeShape. There are several of one NodeShape if pods were added to some
// of its nodes.
type shape struct {
	of        *v1alpha1.NodeShape
	count     int64
	all, free Amounts
}

// Prepare returns the nodes of a summary, nil if there is none.
func Prepare(summary *v1alpha1.NodeShapes) *Nodes {
	if summary == nil {
		return nil
	}
	n := &Nodes{summary: summary}
	for i := range summary.Shapes {
		s := &summary.Shapes[i]
		n.shapes = append(n.shapes, shape{s, int64(s.Count), AmountsOf(s.Allocatable), AmountsOf(s.Free)})
	}
	return n
}

// SameKinds reports whether a cluster has nodes of the same kinds, perhaps more or fewer of them, and with other
// free room: then the same pods fit into empty ones.
func (n *Nodes) SameKinds(o *Nodes) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.summary == o.summary || sameKinds(n.summary, o.summary)
}

// Fits reports whether pods fit into an empty node. If nothing is known of the nodes, they may.
func (n *Nodes) Fits(d *Demand) bool { return n == nil || n.RoomFor(d).Ever > 0 }

// RoomFor returns the room for pods with a demand. Nodes are promised only if they certainly fit: a label that is not
// in the summary may belong to one node alone.
func (n *Nodes) RoomFor(d *Demand) (room Room) {
	var unfit, untolerated int64
	var largest Amounts
	var uncertain map[*v1alpha1.NodeShape]Room
	for _, s := range n.shapes {
		fits, certain := d.mayRunOn(n.summary, s.of)
		if !fits {
			unfit += s.count
			continue
		}
		if !d.tolerates(s.of.Taints) {
			untolerated += s.count
			continue
		}
		free, ever := d.timesIn(s.free), d.timesIn(s.all)
		if certain {
			room.Free += s.count * free
			room.Ever += s.count * ever
		} else {
			if uncertain == nil {
				uncertain = map[*v1alpha1.NodeShape]Room{}
			}
			if before, is := uncertain[s.of]; is {
				free = min(free, before.Free) // the one node may be any of them
			}
			uncertain[s.of] = Room{Free: free, Ever: ever}
		}
		if room.Ever+ever > 0 {
			continue
		}
		if largest == nil {
			largest = Amounts{}
		}
		for name, n := range s.all {
			largest[name] = max(largest[name], n)
		}
	}
	for _, one := range uncertain {
		room.Free, room.Ever = room.Free+one.Free, room.Ever+one.Ever
	}
	room.Free, room.Ever = min(room.Free, unbounded), min(room.Ever, unbounded)
	if room.Ever == 0 {
		room.Why = d.why(unfit, untolerated, largest)
	}
	return room
}

// mayRunOn reports whether the pod may run on nodes of a shape, as to their labels, and whether that is certain
// of all of them.
func (d *Demand) mayRunOn(nodes *v1alpha1.NodeShapes, s *v1alpha1.NodeShape) (fits, certain bool) {
	if len(d.selects) == 0 {
		return true, true
	}
	if slices.Contains(d.selects, metav1.ObjectNameField) || slices.ContainsFunc(d.selects, func(key string) bool { return slices.Contains(nodes.Varying, key) }) {
		return true, false
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: make(map[string]string, len(nodes.Labels)+len(s.Labels))}}
	for _, labels := range []map[string]string{nodes.Labels, s.Labels} {
		for key, value := range labels {
			n.Labels[key] = value
		}
	}
	fits, err := d.affinity.Match(n)
	return fits && err == nil, true
}

func (d *Demand) tolerates(taints []corev1.Taint) bool {
	if len(taints) == 0 {
		return true
	}
	_, untolerated := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), taints, d.tolerations, nil, false)
	return !untolerated
}

// why says why no node can run the pod, even an empty one.
func (d *Demand) why(unfit, untolerated int64, largest Amounts) string {
	if largest != nil {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
			if d.requests[name] > largest[name] {
				return fmt.Sprintf("no node is large enough: a pod requests %s, and the largest node has %s", text(name, d.requests[name]), text(name, largest[name]))
			}
		}
		var lacking []string
		for name, n := range d.requests {
			if n > largest[name] {
				lacking = append(lacking, text(name, n))
			}
		}
		slices.Sort(lacking)
		if len(lacking) > 0 {
			return "no node has " + strings.Join(lacking, " and ") + ", which a pod requests"
		}
		return "no node has all that a pod requests"
	}
	switch {
	case untolerated > 0 && unfit > 0:
		return fmt.Sprintf("the labels of %d nodes do not match, and the taints of %d are not tolerated", unfit, untolerated)
	case untolerated > 0:
		return fmt.Sprintf("the taints of its %d nodes are not tolerated", untolerated)
	case unfit > 0:
		return fmt.Sprintf("the labels of its %d nodes do not match", unfit)
	}
	return "no node accepts pods"
}

func text(name corev1.ResourceName, n int64) string {
	q := Amounts{name: n}.list()[name]
	switch name {
	case corev1.ResourceCPU:
		return q.String() + " CPU"
	case corev1.ResourcePods:
		return q.String() + " pods"
	}
	return q.String() + " of " + string(name)
}
