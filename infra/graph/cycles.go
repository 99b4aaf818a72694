package graph

import "slices"

// Cycles returns one cycle for each group of nodes that depend on each other. The cycle a, b, c
// means that a depends on b, b on c, and c on a. It begins with the lowest node of the group and is
// the shortest one through that node. Cycles are sorted by their first nodes. An acyclic graph has
// none.
func (g *Graph) Cycles() [][]int32 {
	group, first := g.components()
	var out [][]int32
	search := search{group: group, before: make([]int32, g.Len())}
	for n := range g.Len() {
		if first[group[n]] == int32(n) {
			if cycle := search.cycle(g, int32(n)); cycle != nil {
				out = append(out, cycle)
			}
		}
	}
	return out
}

// components returns the strongly connected component of each node, and the lowest node of each
// component. It is Tarjan's algorithm with an explicit stack: recursion would be a million calls
// deep for a chain of a million nodes.
func (g *Graph) components() (group, first []int32) {
	t := &tarjan{g: g, index: make([]int32, g.Len()), low: make([]int32, g.Len()), group: make([]int32, g.Len()), next: slices.Clone(g.start[:g.Len()])}
	for n := range g.Len() {
		if t.index[n] == 0 {
			t.visit(int32(n))
		}
	}
	return t.group, t.first
}

// tarjan is the state of the search. index is the order in which nodes are visited, from 1. low is
// the lowest index reachable from a node among nodes of incomplete components.
type tarjan struct {
	g               *Graph
	met             int32
	index, low      []int32
	next            []int32 // position in each node's list
	path, waiting   []int32 // from the root to the current node; visited, but in no component yet
	group, first    []int32
	componentsSoFar int32
}

func (t *tarjan) enter(n int32) {
	t.met++
	t.index[n], t.low[n], t.group[n] = t.met, t.met, -1
	t.path, t.waiting = append(t.path, n), append(t.waiting, n)
}

func (t *tarjan) visit(root int32) {
	t.enter(root)
	for len(t.path) > 0 {
		n := t.path[len(t.path)-1]
		if t.next[n] < t.g.start[n+1] {
			d := t.g.to[t.next[n]]
			t.next[n]++
			switch {
			case t.index[d] == 0:
				t.enter(d)
			case t.group[d] < 0:
				t.low[n] = min(t.low[n], t.index[d])
			}
			continue
		}
		t.path = t.path[:len(t.path)-1]
		if len(t.path) > 0 {
			above := t.path[len(t.path)-1]
			t.low[above] = min(t.low[above], t.low[n])
		}
		if t.low[n] == t.index[n] {
			t.complete(n)
		}
	}
}

// complete pops a component off the stack, down to its root.
func (t *tarjan) complete(root int32) {
	lowest := root
	for {
		n := t.waiting[len(t.waiting)-1]
		t.waiting = t.waiting[:len(t.waiting)-1]
		t.group[n], lowest = t.componentsSoFar, min(lowest, n)
		if n == root {
			break
		}
	}
	t.first = append(t.first, lowest)
	t.componentsSoFar++
}

// search finds shortest paths within components. It reuses its memory.
type search struct {
	group  []int32
	before []int32 // the previous node on the path, plus 1; 0 if not visited
	queue  []int32
}

// cycle returns the shortest cycle through a node, or nil. Each component is searched once, so that
// all searches together visit each edge at most once.
func (s *search) cycle(g *Graph, node int32) []int32 {
	s.queue = append(s.queue[:0], node)
	for at := 0; at < len(s.queue); at++ {
		n := s.queue[at]
		for _, d := range g.Dependencies(n) {
			if d == node {
				return s.path(n, node)
			}
			if s.group[d] == s.group[node] && s.before[d] == 0 {
				s.before[d] = n + 1
				s.queue = append(s.queue, d)
			}
		}
	}
	return nil
}

// path returns the path that the search took from node to last.
func (s *search) path(last, node int32) []int32 {
	out := []int32{last}
	for n := last; n != node; {
		n = s.before[n] - 1
		out = append(out, n)
	}
	slices.Reverse(out)
	return out
}
