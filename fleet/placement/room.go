package placement

import (
	"fmt"
	"strconv"
	"strings"
)

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

// withinLimits reports whether a cluster has room within its limits for the minimum that it would get.
func (d *decider) withinLimits(at int32) bool {
	if d.fleet.clusters[at].Limits == nil || d.r.Allocations == nil {
		return true
	}
	return d.room(at, d.needs()) > 0
}

// nodesHold reports whether the nodes of a cluster have room for the minimum that it would get. It does if that
// is unknown.
func (d *decider) nodesHold(at int32) bool {
	switch {
	case d.nodes == nil || d.r.Object.Divisible && d.r.Object.Replicas == 0:
		return true
	case d.mode != divided:
		return d.nodes.whole(&d.r.Object, at)
	}
	n, known := d.nodes.replicas(&d.r.Object, at)
	return !known || n > 0
}

// isTight reports whether a cluster has too little room for its part of the replicas, if the policy limits the number
// of clusters.
func (d *decider) isTight(at int32) bool {
	if d.nodes == nil || d.mode != divided || d.most >= noLimit {
		return false
	}
	n, known := d.nodes.replicas(&d.r.Object, at)
	most := int64(d.most)
	return known && n < (int64(d.r.Object.Replicas)+most-1)/most
}

// recordInputs computes what identifies the inputs of the decision apart from replica counts and free room: clusters
// that are full count like others.
func (d *decider) recordInputs() {
	request := d.r.Object.Rebalance
	d.rebalances = IsRequested(request, d.r.Inputs)
	if d.mode != divided && request != "" {
		d.inputs = rebalanced(request)
	}
	if d.nodes == nil && request == "" || d.mode != divided {
		return
	}
	sum := hash(fmt.Sprint(d.most, d.policy.by, d.policy.spread))
	if division := d.policy.spec.Division; division != nil {
		for _, n := range []*int32{division.MinPerCluster, division.MaxPerCluster} {
			if n != nil {
				sum = mix(sum ^ uint64(*n))
			}
			sum = mix(sum)
		}
	}
	clusters := uint64(0) // in any order: a cluster that had no share may have one now
	add := func(at int32, state uint64) {
		c := &d.view.clusters[at]
		one := mix(d.fleet.hashes[at] ^ uint64(c.group)<<48 ^ uint64(c.divisionWeight)<<16 ^ state)
		if fixed, ok := d.fixedAt(at); ok {
			one = mix(one ^ uint64(fixed))
		}
		clusters += one
	}
	for _, h := range d.holders {
		switch {
		case h.gone:
		case h.yields == unmarked:
			add(h.at, 0) // like those that may take it, also while it is not Ready for a moment
		default:
			add(h.at, 1+uint64(h.yields))
		}
	}
	for _, at := range d.view.open {
		if m := d.marks[at]; d.holds[at] == 0 && (m == unmarked || m == markFull || m == markPreempted) {
			add(at, 0)
		}
	}
	d.inputs = strconv.FormatUint(mix(sum^clusters), 16)
	if request != "" {
		d.inputs += rebalanced(request)
	}
	d.steady = d.inputs == d.r.Inputs
}

// IsRequested reports whether an object's Rebalance is another one than that of a decision with some Inputs.
func IsRequested(rebalance, inputs string) bool {
	return rebalance != "" && !strings.HasSuffix(inputs, rebalanced(rebalance))
}

// rebalanced is the end of the inputs of a decision for a request.
func rebalanced(request string) string { return "/" + strconv.FormatUint(hash(request), 16) }

// free returns how many more replicas fit into a cluster. If its nodes are not known, the usage of workloads outside
// the fleet is not known either.
func (d *decider) free(at int32) (int64, bool) {
	if n, known := d.nodes.replicas(&d.r.Object, at); known {
		return min(n, noLimit), true
	}
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

// fullness explains why a cluster has no room.
func (d *decider) fullness(at int32) string {
	if !d.nodesHold(at) || d.marks[at] == markNoMoreRoom {
		return d.nodesFull(at)
	}
	return "its limits leave no room" + because(d.limitReached(at))
}

func (d *decider) nodesFull(at int32) string {
	o := &d.r.Object
	if p, is := d.preemption(at); is {
		return fmt.Sprintf("keeps %d, and makes room for %s", p.Left, p.By)
	}
	n, counted := d.nodes.replicas(o, at)
	if text := d.quotaFull(at, n); text != "" {
		return text
	}
	all := o.times(Share{Whole: true})
	if d.marks[at] == markNoMoreRoom {
		if h := d.holds[at]; h > 0 {
			n += int64(d.holders[h-1].prev)
		}
		return fmt.Sprintf("its nodes have no room for more than %d", n)
	}
	switch {
	case d.r.Group != nil || !counted:
		return "its nodes have no room for all pods together"
	case d.mode != divided && all > 1:
		return fmt.Sprintf("its nodes have room for %d of %d replicas", n, all)
	case n == 0:
		return "its nodes have no room for another pod"
	case n == 1:
		return "its nodes have room for one more pod"
	}
	return fmt.Sprintf("its nodes have room for %d more replicas", n)
}

// quotaFull explains how a ResourceQuota of a cluster bounds the object to so many more replicas, or returns "".
func (d *decider) quotaFull(at int32, n int64) string {
	o := &d.r.Object
	b, less := d.nodes.quotaFor(o, at)
	switch {
	case b.name == "":
		return ""
	case d.mode != divided && !b.whole:
		return fmt.Sprintf("its ResourceQuota %s has no room for all pods together", b.name)
	case !less:
		return ""
	case d.marks[at] == markNoMoreRoom:
		if h := d.holds[at]; h > 0 {
			n += int64(d.holders[h-1].prev)
		}
		return fmt.Sprintf("its ResourceQuota %s has no room for more than %d", b.name, n)
	}
	if n == 0 {
		return fmt.Sprintf("its ResourceQuota %s has no room for another pod", b.name)
	}
	return fmt.Sprintf("its ResourceQuota %s has room for %d more replicas", b.name, n)
}

// limitReached explains which limit of a cluster is exhausted.
func (d *decider) limitReached(at int32) string {
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
