package capacity

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Freed returns the nodes after up to n pods with a demand left them. A summary does not say on which nodes the pods
// are, so they leave as it suits other pods best: from nodes on which those may run, the ones with the most free CPU
// first, and from as few as possible. The cluster's own scheduler does the same when it preempts.
func (n *Nodes) Freed(d *Demand, pods int64, others *Demand) *Nodes {
	out := &Nodes{summary: n.summary, shapes: make([]shape, 0, len(n.shapes)+2)}
	order := make([]int, len(n.shapes))
	suits := make([]bool, len(n.shapes))
	for i, s := range n.shapes {
		may, _ := others.mayRunOn(n.summary, s.of)
		order[i], suits[i] = i, may && others.tolerates(s.of.Taints)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if suits[a] != suits[b] {
			if suits[a] {
				return -1
			}
			return 1
		}
		return cmp.Compare(n.shapes[b].free[corev1.ResourceCPU], n.shapes[a].free[corev1.ResourceCPU])
	})
	for _, i := range order {
		s := n.shapes[i]
		may, _ := d.mayRunOn(n.summary, s.of)
		each := d.timesIn(s.used())
		if pods == 0 || each == 0 || !may || !d.tolerates(s.of.Taints) {
			out.add(s, s.count, s.free)
			continue
		}
		less := min(pods, each*s.count)
		pods -= less
		emptied, rest := less/each, less%each
		changed := emptied
		out.add(s, emptied, s.free.less(d.requests, -each))
		if rest > 0 {
			out.add(s, 1, s.free.less(d.requests, -rest))
			changed++
		}
		out.add(s, s.count-changed, s.free)
	}
	return out
}

// used returns what the pods of one node request.
func (s *shape) used() Amounts {
	out := make(Amounts, len(s.all))
	for name, n := range s.all {
		out[name] = n - s.free[name]
	}
	return out
}

// Reserved returns the nodes less up to n pods that will have room there when others left. Those that do not fit yet
// take free room of the nodes where they may run, until it adds up to their requests.
func (n *Nodes) Reserved(d *Demand, pods int64) *Nodes {
	left, fit := n.Less(d, pods)
	if fit >= pods {
		return left
	}
	missing := Amounts{}
	for _, need := range d.needs {
		missing[need.name] = need.n * (pods - fit)
	}
	out := &Nodes{summary: n.summary, shapes: make([]shape, 0, len(left.shapes)+1)}
	for _, s := range left.shapes {
		if may, _ := d.mayRunOn(n.summary, s.of); !may || !d.tolerates(s.of.Taints) {
			out.add(s, s.count, s.free)
			continue
		}
		nodes := int64(0)
		for name, m := range missing {
			if free := s.free[name]; m > 0 && free > 0 {
				nodes = max(nodes, min(s.count, (m+free-1)/free))
			}
		}
		none := Amounts{}
		for name := range s.free {
			none[name] = 0
			missing[name] -= s.free[name] * nodes
		}
		out.add(s, nodes, none)
		out.add(s, s.count-nodes, s.free)
	}
	return out
}
