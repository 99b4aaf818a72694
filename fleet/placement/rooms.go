package placement

import (
	"slices"
	"time"

	"github.com/atoll-dev/atoll/fleet/capacity"
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

// NewRooms returns Rooms without any clusters.
func NewRooms() *Rooms {
	return &Rooms{clusters: map[string]*clusterRoom{}, demands: map[string]*demandRoom{}, granted: map[string][]string{}, promised: map[string][]string{}, quotas: map[string]map[string][]quotaLimit{}}
}

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
