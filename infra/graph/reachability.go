package graph

import (
	"iter"
	"math/bits"
)

// Set is a set of nodes, stored as a bitset.
type Set struct {
	words []uint64
	count int
}

// NewSet returns a set for the nodes 0 to nodes-1 that contains the given ones.
func NewSet(nodes int, in ...int32) *Set {
	s := &Set{words: make([]uint64, (nodes+63)/64)}
	for _, n := range in {
		s.Add(n)
	}
	return s
}

// Add adds a node and reports whether it was new.
func (s *Set) Add(node int32) bool {
	word, bit := &s.words[node/64], uint64(1)<<(node%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.count++
	return true
}

// Has reports whether the set contains a node.
func (s *Set) Has(node int32) bool { return s.words[node/64]&(1<<(node%64)) != 0 }

// Len returns the number of nodes in the set.
func (s *Set) Len() int { return s.count }

// All returns an iterator over the nodes, ascending.
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

// WithDependencies returns the nodes and their direct and indirect dependencies: what to process if
// they are requested. Its cost is the number of edges between them.
func (g *Graph) WithDependencies(nodes ...int32) *Set { return closure(g.Len(), nodes, g.Dependencies) }

// WithDependents returns the nodes and their direct and indirect dependents: what to process again
// if they change.
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

// ranks returns, for each word of the set, the number of nodes in the words before it.
func (s *Set) ranks() []int32 {
	out := make([]int32, len(s.words))
	sum := int32(0)
	for i, word := range s.words {
		out[i] = sum
		sum += int32(bits.OnesCount64(word))
	}
	return out
}

// rank returns the number of lower nodes in the set.
func (s *Set) rank(ranks []int32, node int32) int32 {
	return ranks[node/64] + int32(bits.OnesCount64(s.words[node/64]&(1<<(node%64)-1)))
}

// Subgraph returns the graph of a set of nodes and the edges between them. The list maps its nodes
// to those of this graph.
func (g *Graph) Subgraph(in *Set) (*Graph, []int32) {
	nodes := make([]int32, 0, in.Len())
	for n := range in.All() {
		nodes = append(nodes, n)
	}
	// Ranks number the nodes without a table of all nodes.
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
		panic(err) // cannot happen: a subgraph is never larger than its graph
	}
	return of, nodes
}
