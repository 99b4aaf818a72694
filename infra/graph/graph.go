package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Edge means that From depends on To.
type Edge struct{ From, To int32 }

// Graph is a dependency graph of the nodes 0 to Len()-1. It is immutable and safe for concurrent
// use.
type Graph struct {
	// The dependencies of node n are to[start[n]:start[n+1]], ascending.
	start []int32
	to    []int32
	// The dependents of node n are from[back[n]:back[n+1]], ascending.
	back []int32
	from []int32
}

// ErrSize is returned for a graph that is too large for 32-bit indexes.
var ErrSize = errors.New("invalid graph size: at most 2147483646 nodes and 2147483647 edges are supported")

// New builds a graph of the nodes 0 to nodes-1. Duplicate edges are allowed. The list is neither
// kept nor changed.
func New(nodes int, edges []Edge) (*Graph, error) {
	if nodes < 0 || nodes > math.MaxInt32-1 || len(edges) > math.MaxInt32 {
		return nil, ErrSize
	}
	for _, e := range edges {
		if e.From < 0 || e.To < 0 || int(e.From) >= nodes || int(e.To) >= nodes {
			return nil, fmt.Errorf("edge from %d to %d is out of range: the graph has %d nodes", e.From, e.To, nodes)
		}
	}
	g := &Graph{}
	// Two counting sorts, first by target and then by source, leave each node's list ascending.
	g.back, g.from = groupByKey(nodes, len(edges), func(i int) (int32, int32) { return edges[i].To, edges[i].From })
	g.start, g.to = transpose(nodes, g.back, g.from)
	g.start, g.to = dedupe(g.start, g.to)
	g.back, g.from = transpose(nodes, g.start, g.to)
	return g, nil
}

// groupByKey groups values into lists by their keys, in their original order.
func groupByKey(nodes, count int, pair func(i int) (key, value int32)) (start, values []int32) {
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

// transpose inverts lists: from the values of each node to the nodes of each value. The new lists
// are ascending.
func transpose(nodes int, start, values []int32) (turned, out []int32) {
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

// dedupe removes duplicates from each list. Lists are ascending.
func dedupe(start, values []int32) ([]int32, []int32) {
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

// Len returns the number of nodes.
func (g *Graph) Len() int { return len(g.start) - 1 }

// Edges returns the number of distinct edges.
func (g *Graph) Edges() int { return len(g.to) }

// Dependencies returns the nodes that a node depends on, ascending. Callers must not change the
// list.
func (g *Graph) Dependencies(node int32) []int32 { return g.to[g.start[node]:g.start[node+1]] }

// Dependents returns the nodes that depend on a node, ascending. Callers must not change the list.
func (g *Graph) Dependents(node int32) []int32 { return g.from[g.back[node]:g.back[node+1]] }

// Reverse returns the graph with all edges reversed, which is the order of destruction. It shares
// memory with this graph and costs nothing.
func (g *Graph) Reverse() *Graph {
	return &Graph{start: g.back, to: g.from, back: g.start, from: g.to}
}

// Order returns all nodes, dependencies first, and by number within a level. It returns false if
// there is a cycle: see Cycles.
func (g *Graph) Order() ([]int32, bool) {
	order, _, ok := g.levels()
	return order, ok
}

// Levels returns the nodes without dependencies, then those that depend only on them, and so on,
// each level ascending. It returns false if there is a cycle.
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

// levels returns an order and the end of each level in it.
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
