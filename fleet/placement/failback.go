package placement

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Home is where an object ran before clusters became unreachable, if it is to return there by itself.
type Home struct {
	Shares []Share
	// After is how long the clusters have to be Ready before.
	After time.Duration
	// Avoided are clusters that failed to run the object, with when they may be tried again.
	Avoided map[string]time.Time
}

// roomRecheck is how often to check whether there is room at home: other objects there make no event for this one.
const roomRecheck = time.Minute

// Failback returns how long clusters have to be Ready before objects return to them; false if objects do not
// return by themselves.
func (p *Policy) Failback() (after time.Duration, returns bool) {
	if p == nil || p.spec.Failback == nil {
		return 0, false
	}
	return max(0, p.spec.Failback.After.Duration), true
}

// HomeInputs identifies what determines where the policy wants objects: while it is the same, an object that failed
// over has the same home. How and when objects move is not part of it.
func (p *Policy) HomeInputs() string {
	if p == nil {
		return ""
	}
	spec := p.spec
	spec.Failback, spec.ApplicationFailover, spec.Consolidation, spec.Transition, spec.Changes = nil, nil, nil, nil, nil
	data, err := json.Marshal(spec)
	if err != nil {
		return "" // it comes from JSON
	}
	return strconv.FormatUint(hash(string(data)+p.pinned), 16)
}

// homecoming is when an object may return to the clusters that it left.
type homecoming struct {
	at  time.Time // when all of them will have been Ready for long enough, if nothing happens
	why string    // why that is not known; "" if it is
	to  []int32   // the clusters that the object left
}

// homecoming evaluates the clusters that the object left. Those that leave the fleet, or have left it, do not count.
func (d *decider) homecoming() (h homecoming) {
	for _, s := range d.r.Home.Shares {
		at, joined := d.fleet.index[s.Cluster]
		if !joined || d.fleet.clusters[at].Leaving || d.holds[at] != 0 {
			continue
		}
		h.to = append(h.to, at)
		c, view := &d.fleet.clusters[at], &d.view.clusters[at]
		rejection := view.rejection
		if rejection == "" && view.avoided {
			rejection = ReasonAvoided
		}
		switch {
		case h.why != "":
		case rejection != "":
			h.why = c.Name + ": " + d.message(at, rejection)
		case c.Object != nil && c.Object.Spec.Drain != nil:
			h.why = c.Name + ": it is drained"
		}
		for _, until := range []time.Time{c.Since.Add(d.r.Home.After), d.r.Home.Avoided[c.Name]} {
			if until.After(h.at) {
				h.at = until
			}
		}
	}
	return h
}

// goHome returns the object to the clusters and shares that it had before clusters became unreachable, if they have
// been Ready for long enough. It returns false if it stays where it is, and says why.
func (d *decider) goHome() (outcome, bool) {
	if d.r.Home == nil {
		return outcome{}, false
	}
	h := d.homecoming()
	switch d.home = h; {
	case len(h.to) == 0 || h.why != "":
		return outcome{}, false
	case h.at.After(d.r.Now):
		d.recheckAt(h.at, true)
		return outcome{}, false
	}
	shares := map[int32]int32{}
	for _, s := range d.r.Home.Shares {
		if at, joined := d.fleet.index[s.Cluster]; joined {
			shares[at] = s.Replicas
		}
	}
	var away []int32 // clusters that give the object back, and others that could take it
	for i := range d.holders {
		holder := &d.holders[i]
		if _, home := shares[holder.at]; !home && !holder.gone {
			if !holder.known {
				d.home.why = fmt.Sprintf("%s: its state is not confirmed", d.fleet.clusters[holder.at].Name)
				return outcome{}, false
			}
			away = append(away, holder.at)
		}
	}
	for _, at := range away {
		d.holderAt(at).again = true
	}
	steady := d.steady
	d.resetMarks()
	fresh := slices.DeleteFunc(d.fresh(), func(m member) bool {
		_, home := shares[m.at]
		if !home && d.holds[m.at] == 0 {
			away = append(away, m.at)
		}
		return !home
	})
	d.homeShares = shares
	for _, d.steady = range []bool{true, false} { // with exactly the shares of then, if the policy permits them
		d.resetMarks()
		o := d.attempt(fresh, false, true)
		if o.problem == "" && o.unplaced == 0 && d.isHome(o.members, h.to) {
			d.returned = true
			for _, at := range away {
				d.marks[at] = markHome
			}
			return o, true
		}
	}
	d.steady, d.homeShares = steady, nil
	for _, at := range away {
		if holder := d.holderAt(at); holder != nil {
			holder.again, d.marks[at] = false, unmarked
		}
	}
	d.home.why = "the policy, or the room there, does not permit it now"
	d.recheckAt(d.r.Now.Add(roomRecheck), true)
	return outcome{}, false
}

// isHome reports whether the members include all of the clusters.
func (d *decider) isHome(members []member, clusters []int32) bool {
	return !slices.ContainsFunc(clusters, func(at int32) bool {
		return !slices.ContainsFunc(members, func(m member) bool { return m.at == at })
	})
}

// atHome sets the previous share of a cluster to the one that it had before the object failed over. Its bounds follow
// from the cluster's present room.
func (d *decider) atHome(it *item, at int32) {
	if n, home := d.homeShares[at]; home {
		it.prev = min(int64(n), it.max)
	}
}

// homeNote says that an object returns to a cluster.
func (d *decider) homeNote(at int32) string {
	if !d.returned || !slices.Contains(d.home.to, at) {
		return ""
	}
	return fmt.Sprintf("; the object ran here before, and returns after the cluster has been Ready for %s", d.r.Home.After)
}

// reportHome completes a decision by whether the object returns home.
func (d *decider) reportHome(out *Decision) {
	if d.r.Home == nil || len(d.home.to) == 0 {
		return
	}
	for _, at := range d.home.to {
		out.Home.To = append(out.Home.To, d.fleet.clusters[at].Name)
	}
	if out.Home.Returned = d.returned; !d.returned {
		out.Home.At, out.Home.Waits = d.home.at, d.home.why
		return
	}
	for _, h := range d.holders {
		if h.again {
			out.Home.Left = append(out.Home.Left, d.fleet.clusters[h.at].Name)
		}
	}
}

// HomeDecision is what a decision says about an object that failed over.
type HomeDecision struct {
	// To are the clusters that the object left, and to which it is to return; empty if there are none.
	To []string
	// Returned: it returns with this decision, and leaves the clusters in Left.
	Returned bool
	Left     []string
	// At is when it will return if nothing happens, and Waits why that is not known.
	At    time.Time
	Waits string
}
