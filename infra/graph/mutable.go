package graph

import (
	"fmt"
	"slices"
)

// Mutable is a graph that changes edge by edge and never has a cycle. What a change costs does not depend on how
// large the graph is: see SetDependencies. It is not safe for concurrent use.
type Mutable struct {
	nodes []node
	free  []int32
	edges int
	// Each node's place in an order in which all come after what they depend on. It is not the order of a
	// walk: it is there to see cheaply that an edge makes no cycle.
	place []int32
	// What a search has met: the stamp of the search.
	met   []uint32
	stamp uint32
}

// node has its edges, and each edge where it stands in the list at its other end, so that it is taken out
// there without a search: there may be a hundred thousand that depend on one.
type node struct {
	dependencies []end
	dependents   []end
	removed      bool
}

type end struct{ node, at int32 }

// Mutable gives a copy of the graph that can be changed. It fails with ErrCycle if there is a cycle.
func (g *Graph) Mutable() (*Mutable, error) {
	order, ok := g.Order()
	if !ok {
		return nil, ErrCycle
	}
	m := &Mutable{nodes: make([]node, g.Len()), place: make([]int32, g.Len()), met: make([]uint32, g.Len())}
	for at, n := range order {
		m.place[n] = int32(at)
	}
	// The lists of all nodes are cut from two, each with room for what it has.
	dependencies, dependents := make([]end, g.Edges()), make([]end, g.Edges())
	for n := range m.nodes {
		from, to := g.start[n], g.start[n+1]
		m.nodes[n].dependencies = dependencies[from:from:to]
		from, to = g.back[n], g.back[n+1]
		m.nodes[n].dependents = dependents[from:from:to]
	}
	for n := range m.nodes {
		for _, d := range g.Dependencies(int32(n)) {
			m.link(int32(n), d)
		}
	}
	return m, nil
}

// Add makes a node, and gives its number: one that was removed, or one more than there were.
func (m *Mutable) Add() int32 {
	if last := len(m.free) - 1; last >= 0 {
		n := m.free[last]
		m.free = m.free[:last]
		m.nodes[n].removed = false
		return n
	}
	n := int32(len(m.nodes))
	m.nodes = append(m.nodes, node{})
	m.place = append(m.place, n)
	m.met = append(m.met, 0)
	return n
}

// Remove takes a node out, with what it depends on. It does nothing and is false if something depends on it, or it
// was removed before. The number will be given again.
func (m *Mutable) Remove(n int32) bool {
	if len(m.nodes[n].dependents) > 0 || m.nodes[n].removed {
		return false
	}
	for len(m.nodes[n].dependencies) > 0 {
		m.unlink(n, len(m.nodes[n].dependencies)-1)
	}
	m.nodes[n].removed = true
	m.free = append(m.free, n)
	return true
}

// Len is one more than the highest number there has been.
func (m *Mutable) Len() int { return len(m.nodes) }

// Edges is how many edges there are.
func (m *Mutable) Edges() int { return m.edges }

// Dependencies are what a node depends on, ascending, in a list of the caller's own.
func (m *Mutable) Dependencies(n int32) []int32 { return numbers(m.nodes[n].dependencies) }

// Dependents are what depends on a node, ascending, in a list of the caller's own.
func (m *Mutable) Dependents(n int32) []int32 { return numbers(m.nodes[n].dependents) }

func numbers(ends []end) []int32 {
	out := make([]int32, len(ends))
	for i, e := range ends {
		out[i] = e.node
	}
	slices.Sort(out)
	return out
}

// SetDependencies says what a node depends on from now on; a node may be given more than once. If that would
// make a cycle nothing is changed, and the cycle is given: it begins with the node.
//
// It costs as much as edges come and go, and for one that comes and goes against the order kept so far, as much as
// there is between its ends in that order and connected with one of them: seldom much, at worst all.
func (m *Mutable) SetDependencies(n int32, dependencies []int32) (cycle []int32) {
	want := slices.Clone(dependencies)
	slices.Sort(want)
	want = slices.Compact(want)
	if len(want) > 0 && (want[0] < 0 || int(want[len(want)-1]) >= len(m.nodes)) {
		panic(fmt.Sprintf("node %d is to depend on %v, and there are %d nodes", n, want, len(m.nodes)))
	}
	had := m.Dependencies(n)
	// First what comes: the node's own old edges are on no way from a new dependency back to it, so they make no cycle
	// that would go away with them.
	added := 0
	for _, d := range want {
		if _, has := slices.BinarySearch(had, d); has {
			continue
		}
		if cycle = m.order(n, d); cycle != nil {
			for range added {
				m.unlink(n, len(m.nodes[n].dependencies)-1)
			}
			return cycle
		}
		m.link(n, d)
		added++
	}
	for at := len(m.nodes[n].dependencies) - added - 1; at >= 0; at-- {
		if _, stays := slices.BinarySearch(want, m.nodes[n].dependencies[at].node); !stays {
			m.unlink(n, at)
		}
	}
	return nil
}

// link adds an edge that is not there.
func (m *Mutable) link(n, d int32) {
	from, to := &m.nodes[n], &m.nodes[d]
	from.dependencies = append(from.dependencies, end{d, int32(len(to.dependents))})
	to.dependents = append(to.dependents, end{n, int32(len(from.dependencies) - 1)})
	m.edges++
}

// unlink takes out the edge at a place in a node's dependencies. The last of each list takes its place.
func (m *Mutable) unlink(n int32, at int) {
	list := m.nodes[n].dependencies
	gone := list[at]
	last := list[len(list)-1]
	list[at] = last
	m.nodes[last.node].dependents[last.at].at = int32(at)
	m.nodes[n].dependencies = list[:len(list)-1]

	back := m.nodes[gone.node].dependents
	moved := back[len(back)-1]
	back[gone.at] = moved
	if int(gone.at) != len(back)-1 {
		m.nodes[moved.node].dependencies[moved.at].at = gone.at
	}
	m.nodes[gone.node].dependents = back[:len(back)-1]
	m.edges--
}

// order brings n after d in the order, so that n can depend on d; or gives the cycle that there would be. It is the
// algorithm of Pearce and Kelly (A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs, 2006).
func (m *Mutable) order(n, d int32) []int32 {
	if n == d {
		return []int32{n}
	}
	if m.place[d] < m.place[n] {
		return nil
	}
	// Only what stands between the two can have to move: what depends on n, and what d depends on.
	after, above := m.search(n, func(x int32) []end { return m.nodes[x].dependents }, func(x int32) bool { return m.place[x] <= m.place[d] })
	if at := slices.Index(after, d); at >= 0 {
		return cycleOf(after, above, at)
	}
	before, _ := m.search(d, func(x int32) []end { return m.nodes[x].dependencies }, func(x int32) bool { return m.place[x] >= m.place[n] })
	byPlace := func(a, b int32) int { return int(m.place[a] - m.place[b]) }
	slices.SortFunc(after, byPlace)
	slices.SortFunc(before, byPlace)
	moved := append(before, after...)
	places := make([]int32, len(moved))
	for i, x := range moved {
		places[i] = m.place[x]
	}
	slices.Sort(places)
	for i, x := range moved {
		m.place[x] = places[i]
	}
	return nil
}

// search gives all that is reached from a node within bounds, and for each by which of those before it was
// reached.
func (m *Mutable) search(from int32, next func(int32) []end, within func(int32) bool) (found, by []int32) {
	if m.stamp++; m.stamp == 0 { // once in four billion searches
		clear(m.met)
		m.stamp = 1
	}
	found, by = []int32{from}, []int32{-1}
	m.met[from] = m.stamp
	for at := 0; at < len(found); at++ {
		for _, e := range next(found[at]) {
			if m.met[e.node] != m.stamp && within(e.node) {
				m.met[e.node] = m.stamp
				found, by = append(found, e.node), append(by, int32(at))
			}
		}
	}
	return found, by
}

// cycleOf reads a cycle from a search that went from its first node along what depends on it to
// the node it was to depend on.
func cycleOf(found, by []int32, at int) []int32 {
	out := []int32{found[0]}
	for ; at > 0; at = int(by[at]) {
		out = append(out, found[at])
	}
	return out
}

// WithDependencies gives the nodes and all that they depend on, directly or not.
func (m *Mutable) WithDependencies(nodes ...int32) *Set {
	return closure(m.Len(), nodes, m.Dependencies)
}

// WithDependents gives the nodes and all that depends on them, directly or not: what is to be looked at again if
// they change.
func (m *Mutable) WithDependents(nodes ...int32) *Set { return closure(m.Len(), nodes, m.Dependents) }

// Part is the graph of the nodes in a set and the edges between them, for a walk; and which node of this graph each of its own is.
func (m *Mutable) Part(in *Set) (*Graph, []int32) { return part(in, m.Dependencies) }

// Part is the graph of the nodes in a set and the edges between them; and which node of this graph each of its own
// is.
func (g *Graph) Part(in *Set) (*Graph, []int32) { return part(in, g.Dependencies) }

func part(in *Set, dependencies func(int32) []int32) (*Graph, []int32) {
	nodes := make([]int32, 0, in.Len())
	for n := range in.All() {
		nodes = append(nodes, n)
	}
	// How many of the set come before each word of it, to number its nodes without a table of all.
	ranks := in.ranks()
	var edges []Edge
	for i, n := range nodes {
		for _, d := range dependencies(n) {
			if in.Has(d) {
				edges = append(edges, Edge{int32(i), in.rank(ranks, d)})
			}
		}
	}
	g, err := New(len(nodes), edges)
	if err != nil {
		panic(err) // a part is no larger than what it is of
	}
	return g, nodes
}
