package placement

import "slices"

// Departure is a cluster that an object leaves because it is unreachable or drained, or because the object is not
// Healthy there, which happens to many objects at a time. The caller may let it wait for its turn: see Request.Awaits.
type Departure struct {
	Cluster string
	// Drained: a user drains the cluster.
	Drained bool
}

// leave makes a holder yield, or keep its share until it is the object's turn.
func (d *decider) leave(h *holder, why mark) {
	if d.r.Awaits[d.fleet.clusters[h.at].Name] {
		h.reason, h.capped = ReasonKeptUntilItsTurn, true
		return
	}
	h.yields = why
}

// findDepartures records which clusters the object leaves, and whether it cannot leave one.
func (d *decider) findDepartures(out *Decision) {
	for i := range d.holders {
		h := &d.holders[i]
		if h.yields != markEvicted && h.yields != markDrained && h.yields != markDegraded {
			continue
		}
		name := d.fleet.clusters[h.at].Name
		if stays := slices.ContainsFunc(out.Chosen, func(v Verdict) bool { return v.Cluster == name }); stays {
			out.Blocked = out.Blocked || h.yields != markEvicted
		} else {
			out.Departures = append(out.Departures, Departure{Cluster: name, Drained: h.yields == markDrained})
		}
	}
}

// turnText explains why an object does not leave a cluster yet.
func (d *decider) turnText(at int32) string {
	switch c := &d.fleet.clusters[at]; {
	case c.Draining && c.DrainPaused && !d.r.Awaits[c.Name]:
		return "the drain of the cluster is paused; keeps its share until it goes on"
	case c.isUnreachable() && !c.Draining:
		return "unreachable since " + stamp(c.Since) + ", and only so many objects a second leave it; keeps its share until its turn comes"
	}
	if !d.fleet.clusters[at].Draining {
		return d.degradedText(at) + ", and only so many objects a second leave the cluster; keeps its share until its turn comes"
	}
	return "the cluster is drained, and only so many objects leave it at a time; keeps its share until its turn comes"
}

// blockedText explains why no other cluster can take an object of a drained one; "" of others.
func (d *decider) blockedText(at int32) string {
	h := d.holderAt(at)
	if h == nil || h.yields != markDrained && h.yields != markDegraded {
		return ""
	}
	marks := slices.Clone(d.marks)
	d.resetMarks() // those of the attempt in which it stays: "enough other clusters are chosen"
	why := d.rejected()
	d.marks = marks
	if why != "" {
		return why
	}
	if h.yields == markDegraded && d.mode != divided {
		return ": the others have a copy already, or too little room"
	}
	return ": the others have too little room"
}
