package graph

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
)

// TestMutable: after any changes a Mutable is the graph that New makes of the same edges, and refuses
// cycles and nothing else.
func TestMutable(t *testing.T) {
	for seed := range int64(2000) {
		random := rand.New(rand.NewSource(seed))
		nodes := 2 + random.Intn(8)
		if err := mutate(nodes, some(random, nodes, random.Intn(6*nodes), seed%3 == 0)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// mutate takes edges as a script: the first adds the second to what it depends on, or takes it out if it is there.
func mutate(nodes int, script []Edge) error {
	empty, err := New(nodes, nil)
	if err != nil {
		return err
	}
	m, err := empty.Mutable()
	if err != nil {
		return err
	}
	now := map[Edge]bool{}
	for i, e := range script {
		next := map[Edge]bool{}
		var dependencies []int32
		for f := range now {
			next[f] = true
		}
		if next[e] {
			delete(next, e)
		} else {
			next[e] = true
		}
		// Now and then another goes at the same time.
		for f := range next {
			if f.From == e.From && f != e && i%3 == 0 {
				delete(next, f)
				break
			}
		}
		for f := range next {
			if f.From == e.From {
				dependencies = append(dependencies, f.To, f.To)
			}
		}
		want, err := New(nodes, slices.Collect(keys(next)))
		if err != nil {
			return err
		}
		cycle := m.SetDependencies(e.From, dependencies)
		if _, ok := want.Order(); ok != (cycle == nil) {
			return fmt.Errorf("%v is refused for %v, want so %v", e, cycle, !ok)
		}
		if cycle == nil {
			now = next
		} else if err := real(cycle, next, e.From); err != nil {
			return err
		}
		if err := m.check(now); err != nil {
			return fmt.Errorf("after %v: %w", script[:i+1], err)
		}
	}
	return m.partsAndRemoval(now)
}

func keys(edges map[Edge]bool) func(func(Edge) bool) {
	return func(yield func(Edge) bool) {
		for e := range edges {
			if !yield(e) {
				return
			}
		}
	}
}

func real(cycle []int32, edges map[Edge]bool, from int32) error {
	for i, n := range cycle {
		if !edges[Edge{n, cycle[(i+1)%len(cycle)]}] {
			return fmt.Errorf("the cycle %v is none of %v", cycle, edges)
		}
	}
	if cycle[0] != from {
		return fmt.Errorf("the cycle %v does not begin with %d", cycle, from)
	}
	return nil
}

// check holds the lists to the edges, both ways, and the order to them.
func (m *Mutable) check(edges map[Edge]bool) error {
	if m.Edges() != len(edges) {
		return fmt.Errorf("there are %d edges, want %d", m.Edges(), len(edges))
	}
	var places []int32
	for n := range m.nodes {
		places = append(places, m.place[n])
		for at, e := range m.nodes[n].dependencies {
			if !edges[Edge{int32(n), e.node}] {
				return fmt.Errorf("%d depends on %d", n, e.node)
			}
			if back := m.nodes[e.node].dependents[e.at]; int(back.node) != n || int(back.at) != at {
				return fmt.Errorf("the ends of %d → %d do not know each other", n, e.node)
			}
			if m.place[e.node] >= m.place[n] {
				return fmt.Errorf("%d is not after %d", n, e.node)
			}
		}
		for _, e := range m.nodes[n].dependents {
			if !edges[Edge{e.node, int32(n)}] {
				return fmt.Errorf("%d depends on %d", e.node, n)
			}
		}
	}
	slices.Sort(places)
	for i, p := range places {
		if int(p) != i {
			return fmt.Errorf("the places are %v", places)
		}
	}
	return nil
}

// partsAndRemoval holds parts to the whole graph, and takes it to pieces.
func (m *Mutable) partsAndRemoval(edges map[Edge]bool) error {
	whole, err := New(m.Len(), slices.Collect(keys(edges)))
	if err != nil {
		return err
	}
	for n := range int32(m.Len()) {
		for _, pair := range [][2]*Set{{m.WithDependencies(n), whole.WithDependencies(n)}, {m.WithDependents(n), whole.WithDependents(n)}} {
			if !slices.Equal(pair[0].words, pair[1].words) {
				return fmt.Errorf("closures of %d differ", n)
			}
			g, nodes := m.Part(pair[0])
			same, _ := whole.Part(pair[0])
			if !slices.Equal(g.to, same.to) || !slices.Equal(g.start, same.start) {
				return fmt.Errorf("parts with %d differ", n)
			}
			count := 0
			for e := range edges {
				if pair[0].Has(e.From) && pair[0].Has(e.To) {
					count++
					from, to := slices.Index(nodes, e.From), slices.Index(nodes, e.To)
					if !slices.Contains(g.Dependencies(int32(from)), int32(to)) {
						return fmt.Errorf("a part has not the edge %v", e)
					}
				}
			}
			if g.Edges() != count || g.Len() != pair[0].Len() {
				return fmt.Errorf("a part has %d edges and %d nodes", g.Edges(), g.Len())
			}
		}
	}
	copied, err := whole.Mutable()
	if err != nil {
		return err
	}
	if err := copied.check(edges); err != nil {
		return fmt.Errorf("a copy: %w", err)
	}
	order, _ := whole.Reverse().Order()
	for _, n := range order {
		if copied.Remove(n) != true {
			return fmt.Errorf("%d cannot be removed", n)
		}
	}
	again := copied.Add()
	if copied.Edges() != 0 || copied.Len() != m.Len() || int(again) >= m.Len() || len(copied.Dependencies(again)) != 0 {
		return fmt.Errorf("what was removed is still there")
	}
	return nil
}

// TestRemoveKeeps: what something depends on stays.
func TestRemoveKeeps(t *testing.T) {
	m, err := build(t, 2, []Edge{{0, 1}}).Mutable()
	if err != nil {
		t.Fatal(err)
	}
	if m.Remove(1) || m.Edges() != 1 {
		t.Error("a node was removed that another depends on")
	}
	if n := m.Add(); n != 2 || m.SetDependencies(1, []int32{n}) != nil || !slices.Equal(m.Dependencies(1), []int32{2}) {
		t.Error("a new node cannot be depended on")
	}
	if c := m.SetDependencies(2, []int32{0}); !slices.Equal(c, []int32{2, 0, 1}) {
		t.Errorf("the cycle is %v", c)
	}
	m.SetDependencies(0, nil)
	if !m.Remove(0) || m.Remove(0) || m.Add() != 0 || m.Add() != 3 {
		t.Error("a number was freed twice")
	}
	if _, err := build(t, 2, []Edge{{0, 1}, {1, 0}}).Mutable(); err != ErrCycle {
		t.Errorf("a cycle: %v", err)
	}
}

// TestRefusedWholly: if one of several dependencies is refused none is taken.
func TestRefusedWholly(t *testing.T) {
	m, err := build(t, 4, []Edge{{3, 2}, {2, 1}}).Mutable()
	if err != nil {
		t.Fatal(err)
	}
	if c := m.SetDependencies(1, []int32{0, 3}); !slices.Equal(c, []int32{1, 3, 2}) {
		t.Errorf("the cycle is %v", c)
	}
	if err := m.check(map[Edge]bool{{3, 2}: true, {2, 1}: true}); err != nil {
		t.Error(err)
	}
}

// TestPartOfMany: numbers in a part, when the set has many words.
func TestPartOfMany(t *testing.T) {
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
	part, nodes := g.Part(in)
	for n := range int32(part.Len()) {
		for _, d := range part.Dependencies(n) {
			if nodes[n] != nodes[d]+1 {
				t.Errorf("%d depends on %d in the part", nodes[n], nodes[d])
			}
		}
	}
	if part.Len() != 666 || part.Edges() != 333 {
		t.Errorf("the part has %d nodes and %d edges", part.Len(), part.Edges())
	}
}
