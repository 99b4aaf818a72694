package graph

import (
	"errors"
	"fmt"
)

// NodeState is the state of a node in a walk.
type NodeState uint8

const (
	// Waiting for its dependencies.
	Waiting NodeState = iota
	// Ready to be started.
	Ready
	// Running means that Next has returned it.
	Running
	// Done means that it succeeded.
	Done
	// Failed means that the caller reported a failure.
	Failed
	// Blocked means that a direct or indirect dependency failed. It never becomes ready.
	Blocked
)

// String returns the name of the state.
func (s NodeState) String() string {
	return [...]string{"waiting", "ready", "running", "done", "failed", "blocked"}[s]
}

// ErrCycle is returned for a walk of a cyclic graph. Cycles shows the cycles.
var ErrCycle = errors.New("the graph has a cycle")

// Walk tracks the progress of a caller that processes the nodes of a graph in dependency order. The
// caller takes ready nodes and reports their results. Walk the Reverse of a graph for the opposite
// order.
//
// A Walk starts nothing, blocks on nothing, and is not safe for concurrent use: the caller provides
// goroutines and locks. It is deterministic. All calls together cost O(nodes + edges), times a
// logarithm for the order of ready nodes.
type Walk struct {
	graph  *Graph
	state  []NodeState
	waits  []int32 // number of unfinished dependencies of each node
	ready  heap
	counts [Blocked + 1]int
}

// Priority is the order of the ready nodes.
type Priority uint8

const (
	// ByNumber returns the lowest node first.
	ByNumber Priority = iota
	// ByPath returns the node first that heads the longest chain of dependents, so that no long
	// chain is left at the end. It returns the lowest among equals.
	ByPath
)

// Walk starts a walk. It returns ErrCycle if the graph has a cycle. weights are the expected
// durations of nodes, for ByPath; if nil, all are equal.
func (g *Graph) Walk(by Priority, weights []int64) (*Walk, error) {
	if weights != nil && len(weights) != g.Len() {
		return nil, fmt.Errorf("%d weights for %d nodes", len(weights), g.Len())
	}
	order, ok := g.Order()
	if !ok {
		return nil, ErrCycle
	}
	p := &Walk{graph: g, state: make([]NodeState, g.Len()), waits: make([]int32, g.Len())}
	if by == ByPath {
		p.ready.weight = g.pathLengths(order, weights)
	}
	p.counts[Waiting] = g.Len()
	for n := range p.waits {
		if p.waits[n] = int32(len(g.Dependencies(int32(n)))); p.waits[n] == 0 {
			p.setState(int32(n), Ready)
		}
	}
	return p, nil
}

// pathLengths returns for each node the length of the longest chain of dependents that begins with
// it.
func (g *Graph) pathLengths(order []int32, weights []int64) []int64 {
	out := make([]int64, g.Len())
	for i := len(order) - 1; i >= 0; i-- {
		n := order[i]
		longest := int64(0)
		for _, d := range g.Dependents(n) {
			longest = max(longest, out[d])
		}
		own := int64(1)
		if weights != nil {
			own = max(0, weights[n])
		}
		out[n] = longest + own
	}
	return out
}

func (p *Walk) setState(n int32, s NodeState) {
	p.counts[p.state[n]]--
	p.state[n] = s
	p.counts[s]++
	if s == Ready {
		p.ready.push(n)
	}
}

// Next returns a ready node and marks it running. It returns false if no node is ready now.
func (p *Walk) Next() (int32, bool) {
	if len(p.ready.nodes) == 0 {
		return 0, false
	}
	n := p.ready.pop()
	p.setState(n, Running)
	return n, true
}

// Done reports the success of a running node. Dependents without other dependencies become ready.
func (p *Walk) Done(node int32) {
	p.end(node, Done)
	for _, d := range p.graph.Dependents(node) {
		// Dependents of a failed node never get here: that node is never done.
		if p.waits[d]--; p.waits[d] == 0 {
			p.setState(d, Ready)
		}
	}
}

// Failed reports the failure of a running node. It returns the direct and indirect dependents that
// this blocks, nearest first. Those blocked before are left out.
func (p *Walk) Failed(node int32) []int32 {
	p.end(node, Failed)
	var blocked []int32
	block := func(n int32) {
		for _, d := range p.graph.Dependents(n) {
			// A dependent of this node can only be waiting or blocked.
			if p.state[d] == Waiting {
				p.setState(d, Blocked)
				blocked = append(blocked, d)
			}
		}
	}
	block(node)
	for at := 0; at < len(blocked); at++ {
		block(blocked[at])
	}
	return blocked
}

// end panics if a node is not running. A caller that ends a node twice would start others too
// early, and none of its tests would notice.
func (p *Walk) end(node int32, s NodeState) {
	if was := p.state[node]; was != Running {
		panic(fmt.Sprintf("node %d cannot become %s: it is %s, not running", node, s, was))
	}
	p.setState(node, s)
}

// State returns the state of a node.
func (p *Walk) State(node int32) NodeState { return p.state[node] }

// Count returns the number of nodes in a state.
func (p *Walk) Count(s NodeState) int { return p.counts[s] }

// Left returns the number of nodes that have not ended. It is 0 when the walk is over.
func (p *Walk) Left() int { return p.counts[Waiting] + p.counts[Ready] + p.counts[Running] }

// heap holds the ready nodes, with the greatest weight or the lowest number on top.
type heap struct {
	nodes  []int32
	weight []int64 // nil for the order by number
}

func (h *heap) before(a, b int32) bool {
	if h.weight != nil && h.weight[a] != h.weight[b] {
		return h.weight[a] > h.weight[b]
	}
	return a < b
}

func (h *heap) push(n int32) {
	h.nodes = append(h.nodes, n)
	for at := len(h.nodes) - 1; at > 0; {
		above := (at - 1) / 2
		if !h.before(h.nodes[at], h.nodes[above]) {
			return
		}
		h.nodes[at], h.nodes[above] = h.nodes[above], h.nodes[at]
		at = above
	}
}

func (h *heap) pop() int32 {
	top, last := h.nodes[0], len(h.nodes)-1
	h.nodes[0] = h.nodes[last]
	h.nodes = h.nodes[:last]
	for at := 0; ; {
		least := at
		for _, below := range []int{2*at + 1, 2*at + 2} {
			if below < last && h.before(h.nodes[below], h.nodes[least]) {
				least = below
			}
		}
		if least == at {
			return top
		}
		h.nodes[at], h.nodes[least] = h.nodes[least], h.nodes[at]
		at = least
	}
}
