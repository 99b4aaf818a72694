package graph

import (
	"math/rand"
	"slices"
	"testing"
)

// TestSubgraph checks that a subgraph has the nodes of its set, and the edges between them.
func TestSubgraph(t *testing.T) {
	for seed := range int64(500) {
		random := rand.New(rand.NewSource(seed))
		nodes := 1 + random.Intn(8)
		g := build(t, nodes, randomEdges(random, nodes, random.Intn(3*nodes), seed%3 == 0))
		in := NewSet(nodes)
		for n := range int32(nodes) {
			if random.Intn(2) == 0 {
				in.Add(n)
			}
		}
		part, of := g.Subgraph(in)
		count := 0
		for from := range int32(nodes) {
			for _, to := range g.Dependencies(from) {
				if !in.Has(from) || !in.Has(to) {
					continue
				}
				count++
				if !slices.Contains(part.Dependencies(int32(slices.Index(of, from))), int32(slices.Index(of, to))) {
					t.Fatalf("seed %d: the subgraph lacks the edge from %d to %d", seed, from, to)
				}
			}
		}
		if part.Edges() != count || part.Len() != in.Len() {
			t.Fatalf("seed %d: the subgraph has %d edges and %d nodes, want %d and %d", seed, part.Edges(), part.Len(), count, in.Len())
		}
	}
}

// TestLargeSubgraph checks the numbering of a subgraph whose set has many words.
func TestLargeSubgraph(t *testing.T) {
	var edges []Edge
	for n := range int32(999) {
		edges = append(edges, Edge{n + 1, n})
	}
	g := build(t, 1000, edges)
	in := NewSet(1000)
	for n := int32(3); n < 1000; n += 3 {
		in.Add(n)
		in.Add(n - 1)
	}
	part, nodes := g.Subgraph(in)
	for n := range int32(part.Len()) {
		for _, d := range part.Dependencies(n) {
			if nodes[n] != nodes[d]+1 {
				t.Errorf("%d depends on %d in the subgraph", nodes[n], nodes[d])
			}
		}
	}
	if part.Len() != 666 || part.Edges() != 333 {
		t.Errorf("the subgraph has %d nodes and %d edges", part.Len(), part.Edges())
	}
}
