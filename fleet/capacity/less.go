package capacity

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Less returns the nodes with up to n more pods on them, which fill one node after the other, and how many of the
// pods fit.
func (n *Nodes) Less(d *Demand, pods int64) (left *Nodes, fit int64) {
	out := &Nodes{summary: n.summary, shapes: make([]shape, 0, len(n.shapes)+2)}
	for _, s := range n.shapes {
		may, certain := d.mayRunOn(n.summary, s.of)
		each := d.timesIn(s.free)
		if fit == pods || each == 0 || !may || !d.tolerates(s.of.Taints) {
			out.add(s, s.count, s.free)
			continue
		}
		nodes := s.count
		if !certain {
			nodes = 1
		}
		more := min(pods-fit, each*nodes)
		fit += more
		// The node that is filled in part comes first: it takes the next pods of the kind.
		full, rest := more/each, more%each
		used := full
		if rest > 0 {
			out.add(s, 1, s.free.less(d.requests, rest))
			used++
		}
		out.add(s, full, s.free.less(d.requests, each))
		out.add(s, s.count-used, s.free)
	}
	return out, fit
}

// add adds so many nodes of a shape, with other free room.
func (n *Nodes) add(s shape, count int64, free Amounts) {
	if count == 0 {
		return
	}
	for i := range n.shapes {
		if o := &n.shapes[i]; o.of == s.of && maps.Equal(o.free, free) {
			o.count += count
			return
		}
	}
	s.count, s.free = count, free
	n.shapes = append(n.shapes, s)
}

func (a Amounts) less(need Amounts, times int64) Amounts {
	out := maps.Clone(a)
	for name, n := range need {
		if n > 0 {
			out[name] -= n * times
		}
	}
	return out
}

// Pods are a number of pods of one kind.
type Pods struct {
	*Demand
	Count int64
}

// Holds reports whether there is room for several kinds of pods together.
func (n *Nodes) Holds(pods []Pods) bool {
	// Large pods first: small ones find room between them.
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b Pods) int {
		return cmp.Or(cmp.Compare(b.requests[corev1.ResourceCPU], a.requests[corev1.ResourceCPU]), cmp.Compare(b.requests[corev1.ResourceMemory], a.requests[corev1.ResourceMemory]))
	})
	for i, p := range pods {
		if n.RoomFor(p.Demand).Free < p.Count {
			return false
		}
		if i < len(pods)-1 {
			n, _ = n.Less(p.Demand, p.Count)
		}
	}
	return true
}
