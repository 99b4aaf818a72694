package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Edge says that From depends on To.
type Edge struct{ From, To int32 }

// Graph is nodes 0 to Len()-1, and which depends on which. It does not change and is safe for
// concurrent use.
type Graph struct {
	// What node n depends on is to[start[n]:start[n+1]], ascending.
	start []int32
	to    []int32
	// The other way round: what depends on n is from[back[n]:back[n+1]], ascending.
	back []int32
	from []int32
}

// ErrSize is of nodes or edges that cannot be numbered by 32 bits.
var ErrSize = errors.New("a graph has at most 2147483647 edges, and nodes from 0 on")

// New builds a graph of the nodes 0 to nodes-1. An edge may be given more than once. The list is not
// kept, nor changed.
func New(nodes int, edges []Edge) (*Graph, error) {
	if nodes < 0 || nodes > math.MaxInt32-1 || len(edges) > math.MaxInt32 {
		return nil, ErrSize
	}
	for _, e := range edges {
		if e.From < 0 || e.To < 0 || int(e.From) >= nodes || int(e.To) >= nodes {
			return nil, fmt.Errorf("an edge from %d to %d is not between nodes: there are %d", e.From, e.To, nodes)
		}
	}
	g := &Graph{}
	// Sorted by counting, twice: first by where they end, so that each node's list comes out ascending
	// when they are put where they begin.
	g.back, g.from = collect(nodes, len(edges), func(i int) (int32, int32) { return edges[i].To, edges[i].From })
	g.start, g.to = flip(nodes, g.back, g.from)
	g.start, g.to = unique(g.start, g.to)
	g.back, g.from = flip(nodes, g.start, g.to)
	return g, nil
}

// collect puts values in lists by their keys, in the order in which they come.
func collect(nodes, count int, pair func(i int) (key, value int32)) (start, values []int32) {
	start, values = make([]int32, nodes+1), make([]int32, count)
	for i := range count {
		key, _ := pair(i)
		start[key+1]++
	}
	for n := range nodes {
		start[n+1] += start[n]
	}
	next := slices.Clone(start[:nodes])
	for i := range count {
		key, value := pair(i)
		values[next[key]] = value
		next[key]++
	}
	return start, values
}

// flip turns lists round: from what each node has to who has it. The new lists are ascending.
func flip(nodes int, start, values []int32) (turned, out []int32) {
	turned, out = make([]int32, nodes+1), make([]int32, len(values))
	for _, v := range values {
		turned[v+1]++
	}
	for n := range nodes {
		turned[n+1] += turned[n]
	}
	next := slices.Clone(turned[:nodes])
	for n := range nodes {
		for _, v := range values[start[n]:start[n+1]] {
			out[next[v]] = int32(n)
			next[v]++
		}
	}
	return turned, out
}

// unique leaves each value once in each list. Lists are ascending.
func unique(start, values []int32) ([]int32, []int32) {
	kept := int32(0)
	begin := start[0]
	for n := range len(start) - 1 {
		last := int32(-1)
		stop := start[n+1]
		for _, v := range values[begin:stop] {
			if v != last {
				values[kept], last = v, v
				kept++
			}
		}
		begin, start[n+1] = stop, kept
	}
	return start, slices.Clip(values[:kept])
}

// Len is how many nodes there are.
func (g *Graph) Len() int { return len(g.start) - 1 }

// Edges is how many edges there are, each counted once.
func (g *Graph) Edges() int { return len(g.to) }

// Dependencies are what a node depends on, ascending. Callers do not change the list.
func (g *Graph) Dependencies(node int32) []int32 { return g.to[g.start[node]:g.start[node+1]] }

// Dependents are what depends on a node, ascending. Callers do not change the list.
func (g *Graph) Dependents(node int32) []int32 { return g.from[g.back[node]:g.back[node+1]] }

// Reverse is the same graph with all edges turned round: the order to destroy in. It costs
// nothing, and shares memory with this one.
func (g *Graph) Reverse() *Graph {
	return &Graph{start: g.back, to: g.from, back: g.start, from: g.to}
}

// Order gives all nodes, each after what it depends on; nodes that could come at once come by their
// numbers, as far as levels go. It is false if there is a cycle: see Cycles.
func (g *Graph) Order() ([]int32, bool) {
	order, _, ok := g.levels()
	return order, ok
}

// Levels gives the nodes that depend on nothing, then those that depend only on those, and so on; each
// ascending. It is false if there is a cycle.
func (g *Graph) Levels() ([][]int32, bool) {
	order, ends, ok := g.levels()
	if !ok {
		return nil, false
	}
	out := make([][]int32, 0, len(ends))
	begin := 0
	for _, end := range ends {
		out = append(out, order[begin:end:end])
		begin = end
	}
	return out, true
}

// levels gives an order, and where in it each level ends.
func (g *Graph) levels() (order []int32, ends []int, ok bool) {
	waits := make([]int32, g.Len())
	order = make([]int32, 0, g.Len())
	for n := range waits {
		if waits[n] = g.start[n+1] - g.start[n]; waits[n] == 0 {
			order = append(order, int32(n))
		}
	}
	for begin := 0; begin < len(order); {
		end := len(order)
		ends = append(ends, end)
		for _, n := range order[begin:end] {
			for _, d := range g.Dependents(n) {
				if waits[d]--; waits[d] == 0 {
					order = append(order, d)
				}
			}
		}
		slices.Sort(order[end:])
		begin = end
	}
	return order, ends, len(order) == g.Len()
}
