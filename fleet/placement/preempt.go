package placement

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/fleet/capacity"
)

// Preempted is that an object makes room in a cluster.
type Preempted struct {
	// Left is how many replicas may stay; 0 if it leaves as a whole.
	Left int32
	// By describes the object that needs the room.
	By string
}

// preemption returns how an object is bounded in a cluster because it makes room there. The state of a cluster that is
// not Ready is not known, and nothing leaves it for that.
func (d *decider) preemption(at int32) (Preempted, bool) {
	if len(d.r.Preempted) == 0 || !d.fleet.clusters[at].Ready {
		return Preempted{}, false
	}
	p, is := d.r.Preempted[d.fleet.clusters[at].Name]
	return p, is
}

// preempted reports whether all of an object makes room in a cluster.
func (d *decider) preempted(at int32) bool {
	p, is := d.preemption(at)
	return is && p.Left == 0
}

// preemptedNote says that a cluster has only a part of the object, because it makes room.
func (d *decider) preemptedNote(at int32) string {
	p, is := d.preemption(at)
	if !is {
		return ""
	}
	return fmt.Sprintf("; keeps at most %d replicas, and makes room for %s", p.Left, p.By)
}

// promise is room that an object waits for, and that others make there. For all other objects it counts as taken, also
// for those of a higher priority: they may make others leave, and those that left would have left for nothing.
type promise struct {
	object string
	pods   []capacity.Pods
	until  time.Time
}

// Promise replaces the promises to an object: so many more replicas of it in clusters, until a time.
func (r *Rooms) Promise(o *Object, more []Share, until time.Time) {
	r.unpromise(o.Key)
	for _, s := range more {
		c := r.clusters[s.Cluster]
		pods := r.demandsOf(o.podsFor(o.times(s)))
		if c == nil || len(pods) == 0 {
			continue
		}
		c.promises = append(c.promises, promise{o.Key, pods, until})
		r.promised[o.Key] = append(r.promised[o.Key], s.Cluster)
		r.update(s.Cluster)
	}
}

func (r *Rooms) unpromise(object string) {
	for _, name := range r.promised[object] {
		if c := r.clusters[name]; c != nil {
			c.promises = slices.DeleteFunc(c.promises, func(p promise) bool { return p.object == object })
			r.update(name)
		}
	}
	delete(r.promised, object)
}

// exceptPromises adds the room that an object itself has been promised.
func (r *Rooms) exceptPromises(room *Room, object string) {
	if len(r.promised[object]) == 0 {
		return
	}
	room.unshare()
	for _, name := range r.promised[object] {
		at, joined := r.fleet.index[name]
		if c := r.clusters[name]; joined && c != nil {
			room.set(at, c.left(object))
		}
	}
}

// unshare gives the room figures of its own.
func (r *Room) unshare() { r.nodes, r.free = slices.Clone(r.nodes), slices.Clone(r.free) }

// set replaces the nodes of a cluster.
func (r *Room) set(at int32, n *capacity.Nodes) {
	r.nodes[at] = n
	if r.free != nil {
		r.free[at] = n.RoomFor(r.demand).Free
	}
}

// Admit returns the room if a cluster of a fleet has some for at least so many more replicas, whatever its nodes report.
func (r *Room) Admit(f *Fleet, cluster string, replicas int32) *Room {
	at, joined := f.index[cluster]
	if r == nil || !joined || replicas <= 0 {
		return r
	}
	out := *r
	if out.admitted = maps.Clone(r.admitted); out.admitted == nil {
		out.admitted = map[int32]int64{}
	}
	out.admitted[at] = int64(replicas)
	return &out
}

// Leaving is a part of an object that would leave a cluster.
type Leaving struct {
	Cluster string
	Object  *Object
	Share   Share
}

// After returns the room if replicas of other objects left clusters.
func (r *Rooms) After(room *Room, leaving []Leaving) *Room {
	demand := room.demand
	if demand == nil && len(room.all) > 0 {
		demand = room.all[0].Demand
	}
	out := *room
	if demand == nil {
		return &out
	}
	out.unshare()
	for _, l := range leaving {
		at, joined := r.fleet.index[l.Cluster]
		if !joined || out.nodes[at] == nil {
			continue
		}
		n := out.nodes[at]
		for _, p := range r.demandsOf(l.Object.podsFor(l.Object.times(l.Share))) {
			n = n.Freed(p.Demand, p.Count, demand)
		}
		out.nodes[at] = n
	}
	for _, l := range leaving {
		if at, joined := r.fleet.index[l.Cluster]; joined && out.nodes[at] != nil && out.nodes[at] != room.nodes[at] {
			out.set(at, out.nodes[at])
		}
	}
	return &out
}
