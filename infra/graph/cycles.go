package graph

import "slices"

// Cycles gives one cycle for each group of nodes that depend on each other: a, b, c says that a depends on b,
// b on c, and c on a. It begins with the lowest node of the group, and is the shortest that goes through
// that one. Cycles are in the order of their first nodes; there are none in a graph that can be put
// in order.
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

// components tells of each node in which strongly connected component it is, and which is the lowest node of
// each. It is Tarjan's algorithm with a stack of its own: a chain of a million nodes would need
// as many calls within each other.
func (g *Graph) components() (group, first []int32) {
	t := &tarjan{g: g, index: make([]int32, g.Len()), low: make([]int32, g.Len()), group: make([]int32, g.Len()), next: slices.Clone(g.start[:g.Len()])}
	for n := range g.Len() {
		if t.index[n] == 0 {
			t.visit(int32(n))
		}
	}
	return t.group, t.first
}

// tarjan is the state of the search. An index is when a node was met, from 1; low the earliest that is reached
// from it among those whose component is not complete.
type tarjan struct {
	g               *Graph
	met             int32
	index, low      []int32
	next            []int32 // where each node's list is to be gone on with
	path, waiting   []int32 // from the root to here; met and in no component
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

// complete takes a component off the stack, down to the node that it was entered by.
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

// search finds shortest ways within components, one after another with the same memory.
type search struct {
	group  []int32
	before []int32 // the node before, plus 1; 0 if not met
	queue  []int32
}

// cycle is the shortest cycle through a node, nil if there is none. A node's component is searched once, so all
// searches together look at each edge at most once.
func (s *search) cycle(g *Graph, node int32) []int32 {
	s.queue = append(s.queue[:0], node)
	for at := 0; at < len(s.queue); at++ {
		n := s.queue[at]
		for _, d := range g.Dependencies(n) {
			if d == node {
				return s.way(n, node)
			}
			if s.group[d] == s.group[node] && s.before[d] == 0 {
				s.before[d] = n + 1
				s.queue = append(s.queue, d)
			}
		}
	}
	return nil
}

// way is how the search came from a node to the last.
func (s *search) way(last, node int32) []int32 {
	out := []int32{last}
	for n := last; n != node; {
		n = s.before[n] - 1
		out = append(out, n)
	}
	slices.Reverse(out)
	return out
}
