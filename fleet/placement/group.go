package placement

import "github.com/atoll-dev/atoll/api/fleet/v1alpha1"

// Group has what the other objects of an object's group mean for its decision. All that run in one
// cluster run in the same.
type Group struct {
	// Needs is what the others need together, and Keys are their keys: a cluster must have room for all.
	Needs Resources
	Keys  []string
	// Near counts the others by cluster. They are preferred to all other clusters.
	Near map[string]int32
	// Only is the cluster where the group is. The object goes there, or waits, unless another cluster
	// has it already. It is "" if the object is free to go to any.
	Only string
	// Pinned: something in Only cannot be elsewhere, so the object leaves other clusters for it.
	Pinned bool
	// Why explains Only; it continues "the cluster …".
	Why string
}

// EffectiveMode returns the mode in which an object would run by a policy; nil means no policy.
func EffectiveMode(o *Object, p *Policy, f *Fleet) v1alpha1.PlacementMode {
	if p == nil {
		p = f.noPolicy
	}
	mode, _ := effective(o, p)
	return mode
}

// Selects reports whether a policy permits objects to stay in a cluster, whether or not it is ready.
func (f *Fleet) Selects(p *Policy, cluster string) bool {
	if p == nil {
		p = f.noPolicy
	}
	at, ok := f.index[cluster]
	if !ok {
		return false
	}
	c := &f.view(p).clusters[at]
	return c.selected && c.eviction != evictNow
}

// Obstruct adds an obstacle in a cluster that has none.
func (r *Request) Obstruct(cluster string, o Obstacle) {
	if _, is := r.Obstacles[cluster]; is {
		return
	}
	if r.Obstacles == nil {
		r.Obstacles = map[string]Obstacle{}
	}
	r.Obstacles[cluster] = o
}

// Whole returns what a cluster needs that runs the whole object.
func (o Object) Whole() Resources {
	return Resources{}.Plus(o.Needs, int64(o.times(Share{Whole: true})))
}

// elsewhere reports whether the group of the object is in another cluster.
func (d *decider) elsewhere(at int32) bool {
	g := d.r.Group
	return g != nil && g.Only != "" && d.fleet.clusters[at].Name != g.Only
}

// near returns how many members of the group a cluster has.
func (d *decider) near(at int32) int32 {
	if d.r.Group == nil {
		return 0
	}
	return d.r.Group.Near[d.fleet.clusters[at].Name]
}

// groupWeight is more than any preference of a policy.
const groupWeight = 1 << 24
