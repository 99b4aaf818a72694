package placement

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Resources is an amount of resources: CPU in millicores, memory in bytes, and pods.
type Resources struct{ CPU, Memory, Pods int64 }

// unbounded is more than any cluster has. It can be added to without overflow.
const unbounded = math.MaxInt64 / 4

// Plus returns a plus n times other.
func (a Resources) Plus(other Resources, n int64) Resources {
	return Resources{a.CPU + n*other.CPU, a.Memory + n*other.Memory, a.Pods + n*other.Pods}
}

// Fits returns how many times need fits into a.
func (a Resources) Fits(need Resources) int64 {
	times := int64(unbounded)
	for _, pair := range [][2]int64{{a.CPU, need.CPU}, {a.Memory, need.Memory}, {a.Pods, need.Pods}} {
		if pair[1] > 0 {
			times = min(times, max(0, pair[0])/pair[1])
		}
	}
	return times
}

// ResourcesFrom converts a resource list. A resource that is missing is zero.
func ResourcesFrom(list corev1.ResourceList) Resources {
	return Resources{CPU: list.Cpu().MilliValue(), Memory: list.Memory().Value(), Pods: list.Pods().Value()}
}

// PodNeeds returns the requests of a pod: the sum of its containers, or those of the largest init
// container if they are higher.
func PodNeeds(spec map[string]any) Resources {
	total := Resources{Pods: 1}
	containers, _ := spec["containers"].([]any)
	for _, c := range containers {
		total = total.Plus(containerNeeds(c), 1)
	}
	initial, _ := spec["initContainers"].([]any)
	for _, c := range initial {
		need := containerNeeds(c)
		total.CPU, total.Memory = max(total.CPU, need.CPU), max(total.Memory, need.Memory)
	}
	return total
}

// RequestedBy returns the requests of a pod whose containers are not known. Invalid quantities count as
// zero.
func RequestedBy(requests map[string]string) Resources {
	cpu, _ := resource.ParseQuantity(requests[string(corev1.ResourceCPU)])
	memory, _ := resource.ParseQuantity(requests[string(corev1.ResourceMemory)])
	return Resources{CPU: cpu.MilliValue(), Memory: memory.Value(), Pods: 1}
}

func containerNeeds(container any) Resources {
	read := func(field, name string) (resource.Quantity, bool) {
		m, _ := container.(map[string]any)
		resources, _ := m["resources"].(map[string]any)
		list, _ := resources[field].(map[string]any)
		if list[name] == nil {
			return resource.Quantity{}, false
		}
		q, err := resource.ParseQuantity(fmt.Sprint(list[name]))
		return q, err == nil
	}
	get := func(name string) resource.Quantity {
		if q, ok := read("requests", name); ok {
			return q
		}
		q, _ := read("limits", name) // without requests, limits count as requests
		return q
	}
	cpu, memory := get("cpu"), get("memory")
	return Resources{CPU: cpu.MilliValue(), Memory: memory.Value()}
}

// bounds returns the limit on what the fleet may place in a cluster, and whether there is a limit.
func bounds(limits *v1alpha1.ClusterLimits, allocatable *Resources) (Resources, bool) {
	all := Resources{unbounded, unbounded, unbounded}
	if limits == nil {
		return all, false
	}
	if p := limits.PercentOfAllocatable; p != nil && allocatable != nil {
		all = Resources{part(allocatable.CPU, *p), part(allocatable.Memory, *p), part(allocatable.Pods, *p)}
	}
	if limits.CPU != nil {
		all.CPU = min(all.CPU, limits.CPU.MilliValue())
	}
	if limits.Memory != nil {
		all.Memory = min(all.Memory, limits.Memory.Value())
	}
	if limits.Pods != nil {
		all.Pods = min(all.Pods, *limits.Pods)
	}
	return all, all != Resources{unbounded, unbounded, unbounded}
}

func part(of int64, percent int32) int64 { return of/100*int64(percent) + of%100*int64(percent)/100 }

// Allocations records what the fleet has placed in which cluster. It is not safe for concurrent
// use. A caller has to decide and record one object after the other, or two objects could take the
// same room.
type Allocations struct {
	used    map[string]Resources
	entries map[string][]entry
}

type entry struct {
	cluster string
	amount  Resources
}

// NewAllocations returns empty Allocations.
func NewAllocations() *Allocations {
	return &Allocations{used: map[string]Resources{}, entries: map[string][]entry{}}
}

// Set replaces the record of one object: what a replica needs, how many replicas it has in total,
// and where they are.
func (l *Allocations) Set(o Object, shares []Share) {
	for _, e := range l.entries[o.Key] {
		l.used[e.cluster] = l.used[e.cluster].Plus(e.amount, -1)
	}
	if len(shares) == 0 {
		delete(l.entries, o.Key)
		return
	}
	entries := make([]entry, 0, len(shares))
	for _, s := range shares {
		e := entry{s.Cluster, Resources{}.Plus(o.Needs, int64(o.times(s)))}
		l.used[s.Cluster] = l.used[s.Cluster].Plus(e.amount, 1)
		entries = append(entries, e)
	}
	l.entries[o.Key] = entries
}

// times returns how many times a cluster with the given share needs the object's requests.
func (o Object) times(s Share) int32 {
	switch {
	case !s.Whole:
		return s.Replicas
	case o.Divisible:
		return o.Replicas
	}
	return 1
}

// Used returns the resources allocated in a cluster, except for one object.
func (l *Allocations) Used(cluster, without string) Resources {
	return l.used[cluster].Plus(l.Of(cluster, without), -1)
}

// Of returns the resources allocated in a cluster for one object.
func (l *Allocations) Of(cluster, key string) Resources {
	i := slices.IndexFunc(l.entries[key], func(e entry) bool { return e.cluster == cluster })
	if i < 0 {
		return Resources{}
	}
	return l.entries[key][i].amount
}
