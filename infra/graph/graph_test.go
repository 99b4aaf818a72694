package graph

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

func build(t testing.TB, nodes int, edges []Edge) *Graph {
	t.Helper()
	g, err := New(nodes, edges)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// randomEdges returns a random list of edges, acyclic on request.
func randomEdges(random *rand.Rand, nodes, edges int, acyclic bool) []Edge {
	var out []Edge
	number := random.Perm(nodes)
	for range edges {
		a, b := random.Intn(nodes), random.Intn(nodes)
		if acyclic && a == b {
			continue
		}
		if acyclic && a < b {
			a, b = b, a
		}
		out = append(out, Edge{int32(number[a]), int32(number[b])})
	}
	return out
}

// model is the simplest implementation: an adjacency matrix and its transitive closure.
type model struct{ edge, reach [][]bool }

func modelOf(nodes int, edges []Edge) model {
	m := model{edge: make([][]bool, nodes), reach: make([][]bool, nodes)}
	for n := range nodes {
		m.edge[n], m.reach[n] = make([]bool, nodes), make([]bool, nodes)
	}
	for _, e := range edges {
		m.edge[e.From][e.To], m.reach[e.From][e.To] = true, true
	}
	for k := range nodes {
		for i := range nodes {
			for j := range nodes {
				m.reach[i][j] = m.reach[i][j] || m.reach[i][k] && m.reach[k][j]
			}
		}
	}
	return m
}

// TestModel compares thousands of random graphs with the model.
func TestModel(t *testing.T) {
	for seed := range int64(3000) {
		random := rand.New(rand.NewSource(seed))
		nodes := 1 + random.Intn(9)
		edges := randomEdges(random, nodes, random.Intn(2*nodes+1), seed%2 == 0)
		if err := compare(nodes, edges); err != nil {
			t.Fatalf("seed %d, %d nodes, %v: %v", seed, nodes, edges, err)
		}
	}
}

func compare(nodes int, edges []Edge) error {
	g, err := New(nodes, edges)
	if err != nil {
		return err
	}
	m := modelOf(nodes, edges)
	count, cyclic := 0, false
	for i := range nodes {
		var to, from, reached, reaching []int32
		for j := range nodes {
			if m.edge[i][j] {
				to = append(to, int32(j))
				count++
			}
			if m.edge[j][i] {
				from = append(from, int32(j))
			}
			if i == j || m.reach[i][j] {
				reached = append(reached, int32(j))
			}
			if i == j || m.reach[j][i] {
				reaching = append(reaching, int32(j))
			}
		}
		cyclic = cyclic || m.reach[i][i]
		r := g.Reverse()
		for _, c := range []struct {
			what      string
			got, want []int32
		}{
			{"dependencies", g.Dependencies(int32(i)), to}, {"dependents", g.Dependents(int32(i)), from},
			{"reversed dependencies", r.Dependencies(int32(i)), from}, {"reversed dependents", r.Dependents(int32(i)), to},
			{"closure", slices.Collect(g.WithDependencies(int32(i)).All()), reached}, {"dependents' closure", slices.Collect(g.WithDependents(int32(i)).All()), reaching},
		} {
			if !slices.Equal(c.got, c.want) {
				return fmt.Errorf("%s of %d are %v, want %v", c.what, i, c.got, c.want)
			}
		}
	}
	if g.Edges() != count || g.Len() != nodes {
		return fmt.Errorf("there are %d edges and %d nodes, want %d and %d", g.Edges(), g.Len(), count, nodes)
	}
	if err := ordered(g, cyclic); err != nil {
		return err
	}
	return cycles(g, m)
}

// ordered checks the order against the edges, and the levels against the longest paths.
func ordered(g *Graph, cyclic bool) error {
	order, ok := g.Order()
	levels, ok2 := g.Levels()
	if ok == cyclic || ok2 == cyclic {
		return fmt.Errorf("order: %v, levels: %v, cycle: %v", ok, ok2, cyclic)
	}
	if cyclic {
		if _, err := g.Walk(ByNumber, nil); !errors.Is(err, ErrCycle) {
			return fmt.Errorf("walk of a cyclic graph: %v", err)
		}
		return nil
	}
	if !slices.Equal(slices.Concat(levels...), order) {
		return fmt.Errorf("levels %v are not the order %v", levels, order)
	}
	level := map[int32]int{}
	for at, nodes := range levels {
		if !slices.IsSorted(nodes) {
			return fmt.Errorf("level %v is not ascending", nodes)
		}
		for _, n := range nodes {
			deepest := -1
			for _, d := range g.Dependencies(n) {
				below, seen := level[d]
				if !seen {
					return fmt.Errorf("%d comes before %d", n, d)
				}
				deepest = max(deepest, below)
			}
			if deepest+1 != at {
				return fmt.Errorf("%d is on level %d, and could be on %d", n, at, deepest+1)
			}
			level[n] = at
		}
	}
	if len(level) != g.Len() {
		return fmt.Errorf("the order %v is incomplete", order)
	}
	return nil
}

// cycles checks that each cycle exists, and that there is one for each strongly connected
// component.
func cycles(g *Graph, m model) error {
	want := map[int]bool{} // the lowest node of each
	for i := range m.edge {
		lowest := i
		for j := range i {
			if m.reach[i][j] && m.reach[j][i] {
				lowest = min(lowest, j)
			}
		}
		if m.reach[i][i] {
			want[lowest] = true
		}
	}
	found := g.Cycles()
	if len(found) != len(want) {
		return fmt.Errorf("the cycles are %v, want one for each of %v", found, want)
	}
	last := int32(-1)
	for _, c := range found {
		if !want[int(c[0])] || c[0] <= last {
			return fmt.Errorf("the cycle %v begins with the wrong node", c)
		}
		last = c[0]
		for i, n := range c {
			if !m.edge[n][c[(i+1)%len(c)]] || slices.Contains(c[:i], n) {
				return fmt.Errorf("%v is not a cycle", c)
			}
		}
		if shortest(m, int(c[0])) != len(c) {
			return fmt.Errorf("the cycle %v is not the shortest", c)
		}
	}
	return nil
}

func shortest(m model, from int) int {
	reached := map[int]bool{from: true}
	for length := 1; ; length++ {
		next := map[int]bool{}
		for a := range reached {
			for b := range m.edge {
				if m.edge[a][b] {
					next[b] = true
				}
			}
		}
		if next[from] || length > len(m.edge) {
			return length
		}
		reached = next
	}
}

// TestNewRejects checks edges out of range.
func TestNewRejects(t *testing.T) {
	for _, e := range []Edge{{0, 2}, {2, 0}, {-1, 0}, {0, -1}} {
		if _, err := New(2, []Edge{e}); err == nil || !strings.Contains(err.Error(), "is out of range: the graph has 2 nodes") {
			t.Errorf("%v: %v", e, err)
		}
	}
	if _, err := New(-1, nil); !errors.Is(err, ErrSize) {
		t.Error(err)
	}
	if g := build(t, 0, nil); g.Len() != 0 || g.Cycles() != nil {
		t.Error("an empty graph has nodes or cycles")
	}
}

// TestDeep checks that a chain and a cycle of a million nodes need no deep stack.
func TestDeep(t *testing.T) {
	const n = 1_000_000
	edges := make([]Edge, 0, n)
	for i := range int32(n - 1) {
		edges = append(edges, Edge{i, i + 1})
	}
	g := build(t, n, edges)
	if g.Cycles() != nil || g.WithDependencies(0).Len() != n {
		t.Error("a chain is wrong")
	}
	g = build(t, n, append(edges, Edge{n - 1, 0}))
	if c := g.Cycles(); len(c) != 1 || len(c[0]) != n {
		t.Error("a long cycle is wrong")
	}
}

// FuzzGraph compares arbitrary edges with the model.
func FuzzGraph(f *testing.F) {
	f.Add(uint8(3), []byte{0, 1, 1, 2, 2, 0})
	f.Add(uint8(2), []byte{0, 0, 1, 0, 1, 0})
	f.Fuzz(func(t *testing.T, nodes uint8, pairs []byte) {
		if nodes = nodes%12 + 1; len(pairs) > 100 {
			return
		}
		var edges []Edge
		for i := 0; i+1 < len(pairs); i += 2 {
			edges = append(edges, Edge{int32(pairs[i] % nodes), int32(pairs[i+1] % nodes)})
		}
		if err := compare(int(nodes), edges); err != nil {
			t.Error(err)
		}
	})
}

// TestText checks paths, text and DOT, of a whole graph and of a part.
func TestText(t *testing.T) {
	name := func(n int32) string { return [...]string{`net["a"]`, `disk["b"]`, `vm["c"]`}[n] }
	g := build(t, 3, []Edge{{2, 0}, {2, 1}, {1, 0}})
	var out strings.Builder
	for _, in := range []*Set{nil, NewSet(3, 2, 0)} {
		if err := errors.Join(g.Text(&out, in, name), g.DOT(&out, in, name)); err != nil {
			t.Fatal(err)
		}
	}
	out.WriteString(Path(build(t, 3, []Edge{{2, 0}, {0, 1}, {1, 2}}).Cycles()[0], name))
	const want = `net["a"]
disk["b"]
  → net["a"]
vm["c"]
  → net["a"]
  → disk["b"]
digraph {
  rankdir = RL
  0 [label="net[\"a\"]"]
  1 [label="disk[\"b\"]"]
  2 [label="vm[\"c\"]"]
  1 -> 0
  2 -> 0
  2 -> 1
}
net["a"]
vm["c"]
  → net["a"]
digraph {
  rankdir = RL
  0 [label="net[\"a\"]"]
  2 [label="vm[\"c\"]"]
  2 -> 0
}
net["a"] → disk["b"] → vm["c"] → net["a"]`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
