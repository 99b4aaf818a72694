package graph

import (
	"iter"
	"math/bits"
)

// Set is a set of nodes: a bit for each.
type Set struct {
	words []uint64
	count int
}

// NewSet makes a set for the nodes 0 to nodes-1, with those given.
func NewSet(nodes int, in ...int32) *Set {
	s := &Set{words: make([]uint64, (nodes+63)/64)}
	for _, n := range in {
		s.Add(n)
	}
	return s
}

// Add puts a node in, and tells whether it was not there.
func (s *Set) Add(node int32) bool {
	word, bit := &s.words[node/64], uint64(1)<<(node%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.count++
	return true
}

// Has tells whether a node is in it.
func (s *Set) Has(node int32) bool { return s.words[node/64]&(1<<(node%64)) != 0 }

// Len is how many there are.
func (s *Set) Len() int { return s.count }

// All goes through them, ascending.
func (s *Set) All() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for i, word := range s.words {
			for ; word != 0; word &= word - 1 {
				if !yield(int32(i*64 + bits.TrailingZeros64(word))) {
					return
				}
			}
		}
	}
}

// WithDependencies gives the nodes and all that they depend on, directly or not: what is to be done if they
// are asked for. It costs as much as there are edges between them.
func (g *Graph) WithDependencies(nodes ...int32) *Set { return closure(g.Len(), nodes, g.Dependencies) }

// WithDependents gives the nodes and all that depends on them, directly or not: what is to be looked at again if
// they change.
func (g *Graph) WithDependents(nodes ...int32) *Set { return closure(g.Len(), nodes, g.Dependents) }

func closure(length int, nodes []int32, next func(int32) []int32) *Set {
	seen := NewSet(length)
	var queue []int32
	visit := func(nodes []int32) {
		for _, n := range nodes {
			if seen.Add(n) {
				queue = append(queue, n)
			}
		}
	}
	visit(nodes)
	for at := 0; at < len(queue); at++ {
		visit(next(queue[at]))
	}
	return seen
}

// ranks is for each word of the set how many nodes are in those before it.
func (s *Set) ranks() []int32 {
	out := make([]int32, len(s.words))
	sum := int32(0)
	for i, word := range s.words {
		out[i] = sum
		sum += int32(bits.OnesCount64(word))
	}
	return out
}

// rank is how many nodes of the set are lower.
func (s *Set) rank(ranks []int32, node int32) int32 {
	return ranks[node/64] + int32(bits.OnesCount64(s.words[node/64]&(1<<(node%64)-1)))
}

// Part is the graph of the nodes in a set and the edges between them; and which node of this graph each of its own
// is.
func (g *Graph) Part(in *Set) (*Graph, []int32) {
	nodes := make([]int32, 0, in.Len())
	for n := range in.All() {
		nodes = append(nodes, n)
	}
	// How many of the set come before each word of it, to number its nodes without a table of all.
	ranks := in.ranks()
	var edges []Edge
	for i, n := range nodes {
		for _, d := range g.Dependencies(n) {
			if in.Has(d) {
				edges = append(edges, Edge{int32(i), in.rank(ranks, d)})
			}
		}
	}
	of, err := New(len(nodes), edges)
	if err != nil {
		panic(err) // a part is no larger than what it is of
	}
	return of, nodes
}
