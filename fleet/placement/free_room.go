package placement

import (
	"slices"

	"github.com/atoll-dev/atoll/fleet/capacity"
)

// For returns the room for an object in the clusters of a fleet. others are pods that must have room in the same cluster.
func (r *Rooms) For(f *Fleet, o *Object, others []Pods, previous []Share) *Room {
	if len(o.Pods)+len(others) == 0 || len(r.clusters) == 0 {
		return nil
	}
	r.align(f)
	r.withdraw(o.Key, previous)
	return r.room(o, others)
}

func (r *Rooms) room(o *Object, others []Pods) *Room {
	room := &Room{nodes: r.nodes}
	if len(o.Pods) == 1 && len(others) == 0 {
		if d := r.demandOf(o.Pods[0].Spec); d != nil {
			room.free, room.each, room.demand = r.freeFor(d), o.Pods[0].Count, d.demand
		}
	} else {
		room.all = r.demandsOf(slices.Concat(o.WholePods(), others))
	}
	r.exceptPromises(room, o.Key)
	room.quotas = r.withinQuotas(o, others)
	return room
}

// Suit reports whether one of some clusters has room for a replica of an object, or for the whole.
func (r *Rooms) Suit(f *Fleet, o *Object, whole bool, clusters []string) bool {
	r.align(f)
	room := r.room(o, nil)
	return slices.ContainsFunc(clusters, func(name string) bool {
		at, joined := f.index[name]
		if !joined || whole {
			return joined && room.whole(o, at)
		}
		n, known := room.replicas(o, at)
		return !known || n > 0
	})
}

// Room is the room for one object in each cluster of a fleet, valid until the next decision is recorded.
type Room struct {
	nodes []*capacity.Nodes
	free  []int64 // for pods of its only kind; nil if there are several kinds
	each  int64   // pods of a replica
	all   []capacity.Pods
	// demand is that of its only kind of pods.
	demand *capacity.Demand
	// admitted are replicas that have room in any case, by position in the fleet.
	admitted map[int32]int64
	// quotas bound the object, by position in the fleet.
	quotas map[int32]quotaBound
}

// replicas returns how many more replicas a cluster has room for, on its nodes and within its quotas. It returns false
// if that is unknown.
func (r *Room) replicas(o *Object, at int32) (int64, bool) {
	if b, less := r.quotaFor(o, at); less {
		return b.replicas, true
	}
	return r.onNodes(o, at)
}

// onNodes returns how many more replicas the nodes of a cluster have room for.
func (r *Room) onNodes(o *Object, at int32) (int64, bool) {
	if r == nil || r.free == nil || r.free[at] == unknownRoom || r.each == 0 {
		return 0, false
	}
	return max(o.runningAtOnce(r.free[at]/r.each), r.admitted[at]), true
}

// whole reports whether a cluster has room for the whole object and the others. It does if that is
// unknown.
func (r *Room) whole(o *Object, at int32) bool {
	if r == nil {
		return true
	}
	if b, bounded := r.quotas[at]; bounded && !b.whole {
		return false
	}
	switch {
	case r.nodes[at] == nil || r.admitted[at] > 0:
		return true
	case r.free != nil:
		n, known := r.replicas(o, at)
		return !known || n >= int64(o.times(Share{Whole: true}))
	}
	return r.nodes[at].Holds(r.all)
}
