package placement

import (
	"fmt"
	"slices"
	"strings"
)

func (d *decider) summarise(out *Decision, result outcome) {
	growing := slices.ContainsFunc(result.members, func(m member) bool { return !m.capped })
	switch {
	case d.r.Object.Finished && len(d.r.Previous) > 0 && len(out.Chosen) > 0:
		out.Scheduled, out.Reason, out.Message = true, Placed, "finished in "+d.chosenText(out.Chosen)
	case result.problem != "":
		out.Reason, out.Message = Unsatisfied, result.problem+d.rejected()
	case !growing && (len(out.Chosen) == 0 || out.Unplaced > 0):
		out.Reason, out.Message = NoReadyClusters, "no cluster can take it"+d.rejected()
	case !d.selectsAny():
		// The object stays where it is, because nothing is removed by a mistake in a name. But that is not
		// what the policy says.
		out.Reason, out.Message = Unsatisfied, "the policy selects no cluster; the object stays on "+d.chosenText(out.Chosen)+d.rejected()
	case d.keptAgainstWish():
		out.Reason, out.Message = Unsatisfied, "no cluster where it should be can take it; the object stays on "+d.chosenText(out.Chosen)+d.rejected()
	case out.Unplaced > 0:
		out.Reason, out.Message = Unplaced, fmt.Sprintf("%d of %d replicas have no cluster%s", out.Unplaced, d.r.Object.Replicas, d.rejected())
	default:
		out.Scheduled, out.Reason, out.Message = true, Placed, "on "+d.chosenText(out.Chosen)
	}
	out.Message += d.view.unknown
}

// tooFew explains why an object stays in more clusters than its policy permits.
func (d *decider) tooFew() string {
	if d.most < noLimit {
		return fmt.Sprintf("with a clusterCount of at most %d, not all replicas would have a cluster", d.most)
	}
	return "in the groups of clusters that the policy permits, not all replicas would have a cluster"
}

// keptAgainstWish reports whether the object runs only in clusters that its policy does not select or gives
// no weight, or where its group is not.
func (d *decider) keptAgainstWish() bool {
	runs := false
	for _, v := range d.chosen {
		if v.Counted && v.Replicas == 0 && d.r.Object.Replicas > 0 {
			continue
		}
		runs = true
		at := d.fleet.index[v.Cluster]
		h := d.holds[at]
		if v.Reason != ReasonKeptNoAlternative || h == 0 {
			return false
		}
		switch d.holders[h-1].yields {
		case markUnselected, markGroup:
		case unmarked: // left there without a weight
		default:
			return false
		}
	}
	return runs
}

// selectsAny reports whether the policy selects a cluster of the fleet, ready or not.
func (d *decider) selectsAny() bool {
	return slices.ContainsFunc(d.view.clusters, func(c clusterView) bool { return c.selected })
}

// chosenText names the first of the chosen clusters.
func (d *decider) chosenText(chosen []Verdict) string {
	const most = 10
	parts := make([]string, 0, most)
	for _, v := range chosen[:min(most, len(chosen))] {
		if v.Counted {
			parts = append(parts, fmt.Sprintf("%s %d", v.Cluster, v.Replicas))
		} else {
			parts = append(parts, v.Cluster)
		}
	}
	text := strings.Join(parts, ", ")
	if more := len(chosen) - len(parts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// rejected returns why the first few clusters were not chosen. Those that the policy selects come
// first.
func (d *decider) rejected() string {
	const most = 5
	var reasons, others []string
	all := 0
	stays := d.keptAgainstWish() // in clusters that count as enough: those that could not take all of it were not chosen
	for i := range d.fleet.clusters {
		reason := d.why(int32(i))
		if reason == "" || reason == ReasonUnsatisfied { // the summary starts with it
			continue
		}
		all++
		if len(reasons) == most || reason == ReasonUnselected && len(others) == most {
			continue
		}
		text := d.fleet.clusters[i].Name + ": " + d.message(int32(i), reason)
		if stays && reason == ReasonEnough {
			text = d.fleet.clusters[i].Name + ": too little room for the object"
		}
		if reason == ReasonUnselected {
			others = append(others, text)
		} else {
			reasons = append(reasons, text)
		}
	}
	reasons = append(reasons, others...)
	if all == 0 {
		return ""
	}
	return ": " + several(reasons[:min(most, len(reasons))], all)
}

// why returns the reason why a cluster is not chosen, or "" if nothing speaks against it.
func (d *decider) why(at int32) string {
	if m := d.marks[at]; m != unmarked {
		return d.reason(at, m)
	}
	if d.holds[at] != 0 {
		return ""
	}
	return d.view.clusters[at].rejection
}

// verdicts returns one verdict for each cluster. It is called after decision.
func (d *decider) verdicts() []Verdict {
	chosen := map[string]Verdict{}
	for _, v := range d.chosen {
		chosen[v.Cluster] = v
	}
	out := make([]Verdict, 0, len(d.fleet.clusters))
	for i := range d.fleet.clusters {
		name := d.fleet.clusters[i].Name
		if v, ok := chosen[name]; ok {
			out = append(out, v)
			continue
		}
		reason := d.why(int32(i))
		if d.r.Object.Finished && len(d.r.Previous) > 0 && reason != ReasonLeaving {
			reason = ReasonObjectFinished
		}
		out = append(out, Verdict{Cluster: name, Reason: reason, Message: d.message(int32(i), reason)})
	}
	return out
}

// against returns what speaks against a holder that stays anyway.
func (d *decider) against(at int32) string {
	if i := d.holds[at]; i > 0 {
		if h := d.holders[i-1]; h.yields != unmarked {
			return d.message(at, d.reason(at, h.yields))
		}
	}
	return ""
}
