package placement

import (
	"slices"
	"time"

	"github.com/atoll-dev/atoll/fleet/capacity"
)

// Pods are pods of one kind that an object consists of.
type Pods struct {
	Spec  map[string]any
	Count int64
}

const (
	// grantTime is how long pods that a decision gave to a cluster count as running there although the cluster
	// does not report them: it reports free room every few seconds.
	grantTime = 30 * time.Second
	// seenTime is how long after a workload is healthy the pods are in the next report for certain.
	seenTime = 2 * time.Second
)

// Rooms records how much room the nodes of clusters have, less the pods of recent decisions, which they do not
// report yet. Like Allocations it is not safe for concurrent use.
type Rooms struct {
	clusters map[string]*clusterRoom
	demands  map[string]*demandRoom             // by capacity.KeyOf
	granted  map[string][]string                // clusters with grants, by the key of the object
	promised map[string][]string                // clusters with promises, by the key of the object
	quotas   map[string]map[string][]quotaLimit // by namespace and cluster
	fleet    *Fleet
	nodes    []*capacity.Nodes // of the fleet's clusters, less the grants
}

type clusterRoom struct {
	reported *capacity.Nodes // nil if they are unknown
	limited  bool            // it has quotas
	grants   []grant
	promises []promise
}

// grant is what a decision gave to a cluster.
type grant struct {
	object string
	pods   []capacity.Pods
	share  int32 // of the object then
	at     time.Time
	seen   time.Time // when the object was healthy there; zero if it is not known to be

	namespace string
	counted   []quotaPods // nil unless the cluster has quotas
}

// demandRoom has the room for one kind of pods.
type demandRoom struct {
	demand *capacity.Demand
	free   []int64           // by position in the fleet; unknownRoom if it is unknown
	of     []*capacity.Nodes // the nodes for which free was computed
}

const unknownRoom = -1

// NewRooms returns Rooms without any clusters.
func NewRooms() *Rooms {
	return &Rooms{clusters: map[string]*clusterRoom{}, demands: map[string]*demandRoom{}, granted: map[string][]string{}, promised: map[string][]string{}, quotas: map[string]map[string][]quotaLimit{}}
}

// GrantedRecently reports whether a decision of some time may not be in the reports of clusters yet.
func GrantedRecently(at, now time.Time) bool { return now.Sub(at) < grantTime }

// Report records the nodes of a cluster as it reports them; nil if they are unknown.
func (r *Rooms) Report(cluster string, nodes *capacity.Nodes, now time.Time) {
	c := r.clusters[cluster]
	if nodes == nil && (c == nil || !c.limited) {
		if c != nil {
			delete(r.clusters, cluster)
			r.update(cluster)
		}
		return
	}
	if c == nil {
		c = &clusterRoom{}
		r.clusters[cluster] = c
	}
	c.reported = nodes
	c.grants = slices.DeleteFunc(c.grants, func(g grant) bool { return !g.seen.IsZero() && now.Sub(g.seen) >= seenTime })
	r.update(cluster)
}

// Expire forgets decisions that are so old that reports have their pods. It returns their clusters.
func (r *Rooms) Expire(now time.Time) (changed []string) {
	for name, c := range r.clusters {
		before := len(c.grants)
		c.grants = slices.DeleteFunc(c.grants, func(g grant) bool { return now.Sub(g.at) >= grantTime })
		before += len(c.promises)
		c.promises = slices.DeleteFunc(c.promises, func(p promise) bool { return !now.Before(p.until) })
		if len(c.grants)+len(c.promises) != before {
			r.update(name)
			changed = append(changed, name)
		}
	}
	return changed
}

// Seen records that an object is healthy in a cluster: all of its pods are there.
func (r *Rooms) Seen(object, cluster string, now time.Time) {
	if c := r.clusters[cluster]; c != nil {
		for i := range c.grants {
			if g := &c.grants[i]; g.object == object && g.seen.IsZero() {
				g.seen = now
			}
		}
	}
}

// Grant records the pods that a decision adds in clusters. It replaces those of earlier decisions about the object
// that its binding does not have.
func (r *Rooms) Grant(o *Object, previous, shares []Share, now time.Time) {
	r.withdraw(o.Key, previous)
	for _, s := range shares {
		c := r.clusters[s.Cluster]
		if c == nil {
			continue
		}
		n, had := o.times(s), int32(0)
		if i := slices.IndexFunc(previous, func(p Share) bool { return p.Cluster == s.Cluster }); i >= 0 {
			had = o.times(previous[i])
		}
		if n <= had {
			continue
		}
		more := o.podsFor(n - had)
		pods := r.demandsOf(more)
		if len(pods) == 0 {
			continue
		}
		g := grant{object: o.Key, pods: pods, share: n, at: now, namespace: o.Namespace}
		if len(r.quotas[o.Namespace][s.Cluster]) > 0 {
			g.counted = quotaPodsOf(more)
		}
		c.grants = append(c.grants, g)
		r.granted[o.Key] = append(r.granted[o.Key], s.Cluster)
		r.take(s.Cluster, pods)
	}
}

// Withdraw forgets the recent decisions about an object that is gone.
func (r *Rooms) Withdraw(object string) {
	r.withdraw(object, nil)
	r.unpromise(object)
}

// withdraw forgets recent decisions about an object beyond its shares.
func (r *Rooms) withdraw(object string, shares []Share) {
	var keep []string
	for _, name := range r.granted[object] {
		c := r.clusters[name]
		if c == nil {
			continue
		}
		before := len(c.grants)
		has := false
		c.grants = slices.DeleteFunc(c.grants, func(g grant) bool {
			if g.object != object {
				return false
			}
			i := slices.IndexFunc(shares, func(s Share) bool { return s.Cluster == name })
			beyond := i < 0 || !shares[i].Whole && shares[i].Replicas < g.share
			has = has || !beyond
			return beyond
		})
		if has {
			keep = append(keep, name)
		}
		if len(c.grants) != before {
			r.update(name)
		}
	}
	if len(keep) == 0 {
		delete(r.granted, object)
		return
	}
	slices.Sort(keep)
	r.granted[object] = slices.Compact(keep)
}

// update computes the room that is left on a cluster's nodes.
func (r *Rooms) update(cluster string) {
	if r.fleet == nil {
		return
	}
	at, ok := r.fleet.index[cluster]
	if !ok {
		return
	}
	r.nodes[at] = nil
	if c := r.clusters[cluster]; c != nil {
		r.nodes[at] = c.left("")
	}
}

// take is update after pods were added to the decisions about a cluster.
func (r *Rooms) take(cluster string, pods []capacity.Pods) {
	if r.fleet == nil {
		return
	}
	at, ok := r.fleet.index[cluster]
	if !ok || r.nodes[at] == nil {
		return
	}
	if len(r.clusters[cluster].promises) > 0 {
		r.update(cluster) // promises count after decisions
		return
	}
	for _, p := range pods {
		r.nodes[at], _ = r.nodes[at].Less(p.Demand, p.Count)
	}
}

// left returns the nodes less recent decisions, and less the promises to others than an object; "" means all of them.
func (c *clusterRoom) left(object string) *capacity.Nodes {
	n := c.reported
	if n == nil {
		return nil
	}
	for _, g := range c.grants {
		for _, p := range g.pods {
			n, _ = n.Less(p.Demand, p.Count)
		}
	}
	for i := range c.promises {
		if promise := &c.promises[i]; promise.object != object {
			for _, p := range promise.pods {
				n = n.Reserved(p.Demand, p.Count)
			}
		}
	}
	return n
}

// align orders the clusters like those of a fleet.
func (r *Rooms) align(f *Fleet) {
	if r.fleet == f {
		return
	}
	r.fleet, r.nodes = f, make([]*capacity.Nodes, len(f.clusters))
	clear(r.demands)
	for i := range f.clusters {
		r.update(f.clusters[i].Name)
	}
}

func (r *Rooms) demandsOf(pods []Pods) (out []capacity.Pods) {
	for _, p := range pods {
		if d := r.demandOf(p.Spec); d != nil && p.Count > 0 {
			out = append(out, capacity.Pods{Demand: d.demand, Count: p.Count})
		}
	}
	return out
}

// demandOf returns the room for one kind of pods; nil if its spec cannot be read, which clusters' API servers explain.
func (r *Rooms) demandOf(spec map[string]any) *demandRoom {
	key := capacity.KeyOf(spec)
	if d, ok := r.demands[key]; ok {
		return d
	}
	demand, err := capacity.DemandOf(spec)
	if err != nil {
		return nil
	}
	if len(r.demands) >= mostRooms {
		clear(r.demands)
	}
	d := &demandRoom{demand: demand}
	r.demands[key] = d
	return d
}

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

// freeFor brings the room for one kind of pods up to date.
func (r *Rooms) freeFor(d *demandRoom) []int64 {
	if len(d.free) != len(r.nodes) {
		d.free, d.of = make([]int64, len(r.nodes)), make([]*capacity.Nodes, len(r.nodes))
		for i := range d.free {
			d.free[i] = unknownRoom
		}
	}
	for i, n := range r.nodes {
		if d.of[i] == n {
			continue
		}
		d.of[i], d.free[i] = n, unknownRoom
		if n != nil {
			d.free[i] = n.RoomFor(d.demand).Free
		}
	}
	return d.free
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

// WholePods returns the pods of the whole object.
func (o *Object) WholePods() []Pods { return o.podsFor(o.times(Share{Whole: true})) }

// podsFor returns the pods of so many replicas.
func (o *Object) podsFor(replicas int32) (out []Pods) {
	n := int64(replicas)
	if o.AtOnce > 0 && o.AtOnce < o.Replicas {
		n = (n*int64(o.AtOnce) + int64(o.Replicas) - 1) / int64(o.Replicas)
	}
	for _, p := range o.Pods {
		out = append(out, Pods{p.Spec, p.Count * n})
	}
	return out
}
