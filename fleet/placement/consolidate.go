package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

// Consolidation is when an object goes back to earlier groups of the policy's clusterGroups.
type Consolidation struct {
	// After is how long these have to have room before.
	After time.Duration
	// Since is since when they have, as the previous decision found; zero if they had none.
	Since time.Time
}

// ConsolidationDecision is what a decision says about an object in later groups.
type ConsolidationDecision struct {
	// From are the clusters from which replicas could go back to earlier groups; empty if none could.
	From []string
	// Since is since when there is room in the earlier groups, and At when the replicas go back.
	Since, At time.Time
	// Returned: they go back with this decision.
	Returned bool
}

// Consolidation returns how long earlier groups have room before objects of the policy go back to them; false if objects do
// not go back by themselves.
func (p *Policy) Consolidation() (after time.Duration, returns bool) {
	if p == nil || p.spec.Consolidation == nil || len(p.groups) < 2 {
		return 0, false
	}
	return p.spec.Consolidation.After.Duration, true
}

// checkConsolidation validates the setting, for policies that no API server has validated.
func checkConsolidation(spec *v1alpha1.PlacementSpec) error {
	switch c := spec.Consolidation; {
	case c == nil:
	case c.After.Duration < v1alpha1.MinConsolidation:
		return fmt.Errorf("spec.consolidation.after is %s: set it to %s or longer", c.After.Duration, v1alpha1.MinConsolidation)
	case len(spec.ClusterGroups) == 0:
		return fmt.Errorf("spec.consolidation requires spec.clusterGroups: set clusterGroups or omit consolidation")
	}
	return nil
}

// consolidate returns the object to earlier groups, if these have had room for long enough. It returns false if the object
// stays as it is, also because something else moves it.
func (d *decider) consolidate(fresh []member) (outcome, bool) {
	c := d.r.Consolidate
	if c == nil || !d.mayConsolidate() {
		return outcome{}, false
	}
	d.recheckAt(d.r.Now.Add(roomRecheck), true) // the room of clusters makes no event for this object
	o, from := d.earlier(fresh)
	if len(from) == 0 {
		return outcome{}, false
	}
	since := c.Since
	if since.IsZero() {
		since = d.r.Now
	}
	out := ConsolidationDecision{From: from, Since: since, At: since.Add(c.After)}
	d.recheckAt(out.At, true)
	awaits := slices.ContainsFunc(from, func(name string) bool { return d.r.Awaits[name] })
	out.Returned = !d.r.Now.Before(out.At) && !awaits
	if d.consolidation = out; !out.Returned {
		d.stayLate()
		return outcome{}, false
	}
	return o, true
}

// mayConsolidate reports whether the object is in later groups, and nothing else moves it or keeps it.
func (d *decider) mayConsolidate() bool {
	if len(d.policy.groups) < 2 || d.r.Home != nil || d.r.Group != nil || d.rebalances || len(d.r.Pending)+len(d.r.Preempted) > 0 || d.mode != divided && d.r.Object.Stays {
		return false
	}
	late, running := false, int32(0)
	for i := range d.holders {
		h := &d.holders[i]
		if h.gone || !h.known || h.yields != unmarked {
			return false
		}
		running += h.prev
		late = late || h.prev > 0 && d.view.clusters[h.at].group > 0
	}
	return late && (d.mode != divided || running == d.r.Object.Replicas)
}

// earlier attempts to place the object in earlier groups, and returns the clusters that replicas would leave for that.
func (d *decider) earlier(fresh []member) (o outcome, from []string) {
	if d.mode == divided {
		d.consolidating = true
		defer func() { d.consolidating = false }()
	} else {
		for i := range d.holders {
			h := &d.holders[i]
			h.again = h.free() && d.view.clusters[h.at].group > 0
		}
		fresh = d.fresh()
	}
	d.resetMarks()
	o = d.attempt(fresh, false, true)
	if o.problem == "" && o.unplaced == 0 && !d.isTooSmall(&o) {
		from = d.leftFor(&o)
	}
	if len(from) == 0 {
		d.stayLate()
	}
	return o, from
}

// stayLate undoes an attempt in which the object goes to earlier groups.
func (d *decider) stayLate() {
	for i := range d.holders {
		if h := &d.holders[i]; h.again {
			h.again, d.marks[h.at] = false, unmarked
		}
	}
	d.resetMarks()
}

// leftFor returns the clusters that have fewer replicas in an outcome. It returns none unless these replicas all go to
// earlier groups, and none if a copy is lost.
func (d *decider) leftFor(o *outcome) (from []string) {
	first, last := int32(len(d.policy.groups)), int32(-1) // the groups that lose replicas, and the last one that gains any
	for i := range d.holders {
		h := &d.holders[i]
		at := slices.IndexFunc(o.members, func(m member) bool { return m.at == h.at })
		if at < 0 || d.mode == divided && o.members[at].replica < h.prev {
			from = append(from, d.fleet.clusters[h.at].Name)
			first = min(first, d.view.clusters[h.at].group)
		}
	}
	for _, m := range o.members {
		if h := d.holderAt(m.at); h == nil || d.mode == divided && m.replica > h.prev {
			last = max(last, d.view.clusters[m.at].group)
		}
	}
	if last >= first || d.mode != divided && len(o.members) < len(d.holders) {
		return nil
	}
	return from
}

// isTooSmall reports whether an outcome has a share that is smaller than the policy's minPerCluster.
func (d *decider) isTooSmall(o *outcome) bool {
	division := d.policy.spec.Division
	return d.mode == divided && division != nil && division.MinPerCluster != nil && slices.ContainsFunc(o.members, func(m member) bool {
		return m.replica > 0 && m.replica < *division.MinPerCluster
	})
}

// intoEarlierGroups bounds the shares so that each group has as many replicas as it has room for before the next one gets
// any, and no replicas move within a group.
func (d *decider) intoEarlierGroups(members []member, items []item, total int64) {
	left := total
	for g := range int32(len(d.policy.groups)) {
		prev, room := int64(0), int64(0)
		for i, m := range members {
			if it := &items[i]; d.view.clusters[m.at].group == g {
				if prev += it.prev; it.weight > 0 {
					room += max(it.max, it.min)
				} else {
					room += it.min
				}
			}
		}
		wanted := min(left, room)
		left -= wanted
		for i, m := range members {
			it := &items[i]
			switch {
			case d.view.clusters[m.at].group != g:
			case wanted >= prev:
				it.min = max(it.min, min(it.prev, it.max))
			default:
				it.min, it.max = 0, min(it.max, it.prev)
			}
		}
	}
}

// consolidationNote says that replicas go back to a cluster of an earlier group.
func (d *decider) consolidationNote(at int32) string {
	if !d.consolidation.Returned || slices.Contains(d.consolidation.From, d.fleet.clusters[at].Name) {
		return ""
	}
	return fmt.Sprintf("; replicas go back from %s, since an earlier group has had room for %s", names.List(d.consolidation.From), d.r.Consolidate.After)
}

// consolidationDepartures adds the clusters that replicas leave for earlier groups: many objects may do so at a time, when
// a cluster of an earlier group has joined.
func (d *decider) consolidationDepartures(out *Decision) {
	if out.Consolidation = d.consolidation; !d.consolidation.Returned {
		return
	}
	for _, name := range d.consolidation.From {
		out.Departures = append(out.Departures, Departure{Cluster: name})
	}
}
