package graph

import (
	"errors"
	"fmt"
)

// State is how far a node has come in a walk.
type State uint8

const (
	// Waiting is for what it depends on.
	Waiting State = iota
	// Ready can be started.
	Ready
	// Running was given to the caller by Next.
	Running
	// Done is what all went well with.
	Done
	// Failed is what the caller said has failed.
	Failed
	// Blocked is what depends on something that failed, directly or not. It is never ready.
	Blocked
)

// String is for logs and tests.
func (s State) String() string {
	return [...]string{"waiting", "ready", "running", "done", "failed", "blocked"}[s]
}

// ErrCycle is of a graph that cannot be walked: Cycles shows why.
var ErrCycle = errors.New("nodes depend on each other in a cycle")

// Progress is how far a walk over a graph has come, for a caller that does many things at once: it takes what is
// ready, and says what became of it. To walk the other way, walk the Reverse of the graph.
//
// It starts nothing and waits for nothing, and is not safe for concurrent use: the caller has the goroutines, and the
// lock. The same calls give the same answers. All calls of a walk together cost as much as the graph has nodes and edges
// (times a logarithm for the order of what is ready).
type Progress struct {
	graph  *Graph
	state  []State
	waits  []int32 // of each node, dependencies that are not done
	ready  heap
	counts [Blocked + 1]int
}

// Priority says which of the nodes that are ready come first.
type Priority uint8

const (
	// ByNumber is the lowest first.
	ByNumber Priority = iota
	// ByPath is those first that the longest chain of others waits for, so that it is not left
	// alone at the end; the lowest first among equals.
	ByPath
)

// Walk begins a walk. It fails with ErrCycle if the graph has a cycle. Weights, which may be nil, say how long
// nodes are expected to take, for ByPath; without, all are the same.
func (g *Graph) Walk(by Priority, weights []int64) (*Progress, error) {
	if weights != nil && len(weights) != g.Len() {
		return nil, fmt.Errorf("there are %d weights for %d nodes", len(weights), g.Len())
	}
	order, ok := g.Order()
	if !ok {
		return nil, ErrCycle
	}
	p := &Progress{graph: g, state: make([]State, g.Len()), waits: make([]int32, g.Len())}
	if by == ByPath {
		p.ready.weight = g.critical(order, weights)
	}
	p.counts[Waiting] = g.Len()
	for n := range p.waits {
		if p.waits[n] = int32(len(g.Dependencies(int32(n)))); p.waits[n] == 0 {
			p.become(int32(n), Ready)
		}
	}
	return p, nil
}

// critical is for each node how long the longest chain is that begins with it and goes on to what waits for it.
func (g *Graph) critical(order []int32, weights []int64) []int64 {
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

func (p *Progress) become(n int32, s State) {
	p.counts[p.state[n]]--
	p.state[n] = s
	p.counts[s]++
	if s == Ready {
		p.ready.push(n)
	}
}

// Next gives a node that can be started now, and takes it as started; false if there is none at the moment.
func (p *Progress) Next() (int32, bool) {
	if len(p.ready.nodes) == 0 {
		return 0, false
	}
	n := p.ready.pop()
	p.become(n, Running)
	return n, true
}

// Done says that all went well with a node that Next gave. What depends on nothing else becomes ready.
func (p *Progress) Done(node int32) {
	p.end(node, Done)
	for _, d := range p.graph.Dependents(node) {
		// Nothing that waits for a failure gets here: that one is never done.
		if p.waits[d]--; p.waits[d] == 0 {
			p.become(d, Ready)
		}
	}
}

// Failed says that a node that Next gave has failed. It gives everything that is blocked by it and was not
// blocked before: what depends on it, directly or not, each once, nearest first.
func (p *Progress) Failed(node int32) []int32 {
	p.end(node, Failed)
	var blocked []int32
	block := func(n int32) {
		for _, d := range p.graph.Dependents(n) {
			// It waits for this node, so it is waiting or blocked, and nothing else.
			if p.state[d] == Waiting {
				p.become(d, Blocked)
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

// end panics if a node is ended that is not running: a caller that ends one twice would start others
// too early, and no test of its would notice.
func (p *Progress) end(node int32, s State) {
	if was := p.state[node]; was != Running {
		panic(fmt.Sprintf("node %d is said to be %s, but it is %s and not running", node, s, was))
	}
	p.become(node, s)
}

// State is how far a node has come.
func (p *Progress) State(node int32) State { return p.state[node] }

// Count is how many nodes have come so far and no further.
func (p *Progress) Count(s State) int { return p.counts[s] }

// Left is how many nodes are still to come to an end: 0 when the walk is over.
func (p *Progress) Left() int { return p.counts[Waiting] + p.counts[Ready] + p.counts[Running] }

// heap is what is ready, the first on top: the greatest weight, or the lowest number.
type heap struct {
	nodes  []int32
	weight []int64 // nil if only numbers count
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
