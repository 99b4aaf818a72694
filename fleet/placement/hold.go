package placement

import (
	"fmt"
	"slices"
	"time"
)

// holdWindow is how close together clusters become unreachable that count together. Probes notice a fault within half
// of it.
const holdWindow = time.Minute

// hold is how many clusters became unreachable together with one.
type hold struct {
	together int
	of       int // of how many that had been reachable; 0 if they are not too many
}

func (h hold) String() string {
	if h.of == 0 {
		return "as more than half of all clusters were"
	}
	return fmt.Sprintf("like %d of %d clusters within a minute, so the fault is probably in Atoll's own network", h.together, h.of)
}

// holdFailovers finds the clusters that became unreachable within a minute of each other and are more than half of
// those that were reachable until then. One cluster alone is never too many: in a fleet of two, the other takes over.
func holdFailovers(clusters []Cluster) {
	var lost []int
	joined := 0
	for i := range clusters {
		clusters[i].hold = hold{}
		if clusters[i].Leaving {
			continue
		}
		joined++
		if clusters[i].isUnreachable() {
			lost = append(lost, i)
		}
	}
	slices.SortFunc(lost, func(a, b int) int { return clusters[a].Since.Compare(clusters[b].Since) })
	end, marked := 0, 0
	for first := range lost {
		for end < len(lost) && clusters[lost[end]].Since.Sub(clusters[lost[first]].Since) <= holdWindow {
			end++
		}
		together, of := end-first, joined-first
		if together < 2 || 2*together <= of {
			continue
		}
		for ; marked < end; marked++ {
			if marked >= first {
				clusters[lost[marked]].hold = hold{together, of}
			}
		}
	}
}

// isHeld reports whether nothing leaves the cluster although it is unreachable. That lasts until the leader has recorded
// the end: so a decision in between does not take the time of the whole fault for one that was tolerated.
func (c *Cluster) isHeld() bool {
	return c.isUnreachable() && !c.Leaving && (c.hold.of > 0 || c.HoldRecorded)
}

// Hold returns how many clusters became unreachable together with one, and of how many, if those are too many for a
// failover. held is false if they are not, even if the condition FailoverHeld of the cluster is still True.
func (f *Fleet) Hold(cluster string) (together, of int, held bool) {
	at, ok := f.index[cluster]
	if !ok {
		return 0, 0, false
	}
	h := f.clusters[at].hold
	return h.together, h.of, h.of > 0
}

// HoldChanges returns the clusters whose failover is held in only one of two fleets, and the two states of each.
func (f *Fleet) HoldChanges(after *Fleet) (out [][2]*Cluster) {
	for i := range f.clusters {
		was := &f.clusters[i]
		if at, joined := after.index[was.Name]; joined && was.isHeld() != after.clusters[at].isHeld() {
			out = append(out, [2]*Cluster{was, &after.clusters[at]})
		}
	}
	return out
}
