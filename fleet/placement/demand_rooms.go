package placement

import "github.com/atoll-dev/atoll/fleet/capacity"

// demandRoom has the room for one kind of pods.
type demandRoom struct {
	demand *capacity.Demand
	free   []int64           // by position in the fleet; unknownRoom if it is unknown
	of     []*capacity.Nodes // the nodes for which free was computed
}

const unknownRoom = -1

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
