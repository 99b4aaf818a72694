package placement

import "fmt"

// room returns how many times need fits into the limits of a cluster, beside what the fleet has
// placed there for other objects.
func (d *decider) room(at int32, need Resources) int64 {
	c := &d.fleet.clusters[at]
	if c.Limits == nil || d.r.Allocations == nil {
		return unbounded
	}
	all, bounded := bounds(c.Limits, c.Allocatable)
	if !bounded {
		return unbounded
	}
	return all.Plus(d.used(c.Name), -1).Fits(need)
}

// used returns what the fleet has placed in a cluster for objects that are not part of the decision.
func (d *decider) used(cluster string) Resources {
	used := d.r.Allocations.Used(cluster, d.r.Object.Key)
	if g := d.r.Group; g != nil && d.mode != divided {
		for _, key := range g.Keys {
			used = used.Plus(d.r.Allocations.Of(cluster, key), -1)
		}
	}
	return used
}

// needs returns what a cluster needs for the object and its group, or for one replica.
func (d *decider) needs() Resources {
	need := d.r.Object.Needs
	if d.mode == divided {
		return need
	}
	need = d.r.Object.Whole()
	if d.r.Group != nil {
		need = need.Plus(d.r.Group.Needs, 1)
	}
	return need
}

// roomForOne reports whether a cluster has room for the minimum that it would get.
func (d *decider) roomForOne(at int32) bool {
	if d.fleet.clusters[at].Limits == nil || d.r.Allocations == nil {
		return true
	}
	return d.room(at, d.needs()) > 0
}

// free returns how many replicas fit into a cluster's capacity, as far as it is known. The usage of
// workloads outside the fleet is not known.
func (d *decider) free(at int32) (int64, bool) {
	c := &d.fleet.clusters[at]
	if c.Allocatable == nil {
		return 0, false
	}
	left := *c.Allocatable
	if d.r.Allocations != nil {
		left = left.Plus(d.r.Allocations.Used(c.Name, ""), -1)
	}
	need := d.r.Object.Needs
	if need == (Resources{}) {
		need.Pods = 1
	}
	return min(left.Fits(need), noLimit), true
}

// fullness explains which limit of a cluster is exhausted.
func (d *decider) fullness(at int32) string {
	c := &d.fleet.clusters[at]
	if d.r.Allocations == nil {
		return ""
	}
	all, _ := bounds(c.Limits, c.Allocatable)
	used, need := d.used(c.Name), d.needs()
	switch {
	case need.CPU > 0 && all.CPU < unbounded && used.CPU+need.CPU > all.CPU:
		return fmt.Sprintf("%dm of %dm CPU is allocated, and %dm is requested", used.CPU, all.CPU, need.CPU)
	case need.Memory > 0 && all.Memory < unbounded && used.Memory+need.Memory > all.Memory:
		return fmt.Sprintf("%d of %d Mi of memory is allocated, and %d Mi is requested", used.Memory>>20, all.Memory>>20, need.Memory>>20)
	case all.Pods < unbounded && used.Pods+need.Pods > all.Pods:
		return fmt.Sprintf("%d of %d pods are allocated", used.Pods, all.Pods)
	}
	return "the object as a whole needs more than the remaining room"
}
