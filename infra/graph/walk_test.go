package graph

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestWalk checks the states against the edges after each step of walks with failures.
func TestWalk(t *testing.T) {
	for seed := range int64(3000) {
		random := rand.New(rand.NewSource(seed))
		nodes := 1 + random.Intn(12)
		edges := randomEdges(random, nodes, random.Intn(2*nodes+1), true)
		g := build(t, nodes, edges)
		if seed%2 == 1 {
			g = g.Reverse()
		}
		if err := walk(g, random, seed%3 == 0); err != nil {
			t.Fatalf("seed %d, %v: %v", seed, edges, err)
		}
	}
}

// walk ends running nodes in random order, some of them with a failure.
func walk(g *Graph, random *rand.Rand, byPath bool) error {
	by := ByNumber
	if byPath {
		by = ByPath
	}
	p, err := g.Walk(by, nil)
	if err != nil {
		return err
	}
	var running []int32
	blocked := map[int32]bool{}
	for p.Left() > 0 {
		if n, ok := p.Next(); ok && random.Intn(3) > 0 {
			running = append(running, n)
		} else if ok {
			running = append([]int32{n}, running...)
		}
		if err := consistent(g, p, running, blocked); err != nil {
			return err
		}
		if len(running) == 0 || random.Intn(2) == 0 {
			continue
		}
		at := random.Intn(len(running))
		n := running[at]
		running = slices.Delete(running, at, at+1)
		if random.Intn(5) > 0 {
			p.Done(n)
			continue
		}
		for _, b := range p.Failed(n) {
			if blocked[b] {
				return fmt.Errorf("%d is blocked twice", b)
			}
			blocked[b] = true
		}
	}
	if _, ok := p.Next(); ok || len(running) > 0 {
		return fmt.Errorf("nodes are left after the walk")
	}
	return consistent(g, p, nil, blocked)
}

// consistent checks the state of each node against those of its dependencies.
func consistent(g *Graph, p *Walk, running []int32, blocked map[int32]bool) error {
	var counts [Blocked + 1]int
	for n := range int32(g.Len()) {
		failed, done := false, true
		for _, d := range g.Dependencies(n) {
			failed = failed || p.State(d) == Failed || p.State(d) == Blocked
			done = done && p.State(d) == Done
		}
		s := p.State(n)
		counts[s]++
		switch {
		case failed != (s == Blocked), blocked[n] != (s == Blocked):
			return fmt.Errorf("%d is %s, with a failed dependency: %v, reported blocked: %v", n, s, failed, blocked[n])
		case !failed && done != (s != Waiting):
			return fmt.Errorf("%d is %s, with all dependencies done: %v", n, s, done)
		case slices.Contains(running, n) != (s == Running):
			return fmt.Errorf("%d is %s, want running: %v", n, s, running)
		}
	}
	for s, count := range counts {
		if p.Count(NodeState(s)) != count {
			return fmt.Errorf("%d nodes are %s, but the count is %d", count, NodeState(s), p.Count(NodeState(s)))
		}
	}
	return nil
}

// TestPriority checks the order by number, by path length and by weighted path length.
func TestPriority(t *testing.T) {
	// 5 → 4 → 3 is a chain; 0, 1 and 2 are alone.
	g := build(t, 6, []Edge{{5, 4}, {4, 3}})
	for _, tt := range []struct {
		name    string
		by      Priority
		weights []int64
		want    string
	}{
		{"by number", ByNumber, nil, "[0 1 2 3 4 5]"},
		{"by path", ByPath, nil, "[3 4 0 1 2 5]"},
		{"by weight", ByPath, []int64{1, 1, 9, 1, 1, 1}, "[2 3 4 0 1 5]"},
	} {
		p, err := g.Walk(tt.by, tt.weights)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for n, ok := p.Next(); ok; n, ok = p.Next() {
			got = append(got, n)
			p.Done(n)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
	if _, err := g.Walk(ByPath, []int64{1}); err == nil {
		t.Error("one weight was accepted for six nodes")
	}
}

// TestEndTwicePanics checks that a caller that ends a node twice notices at once.
func TestEndTwicePanics(t *testing.T) {
	p, err := build(t, 2, []Edge{{1, 0}}).Walk(ByNumber, nil)
	if err != nil {
		t.Fatal(err)
	}
	panics := func(do func()) (text string) {
		defer func() { text = fmt.Sprint(recover()) }()
		do()
		return ""
	}
	if got := panics(func() { p.Done(1) }); got != "node 1 cannot become done: it is waiting, not running" {
		t.Error(got)
	}
	n, _ := p.Next()
	p.Done(n)
	if got := panics(func() { p.Failed(n) }); got != "node 0 cannot become failed: it is done, not running" {
		t.Error(got)
	}
}

// TestReplacements shows how a caller models an apply, with one node per create or update and one
// per destroy. It implements the rules in DESIGN.md and checks the resulting orders.
func TestReplacements(t *testing.T) {
	// Resources net ← disk ← vm: the disk is in the net, the vm has the disk.
	depends := map[string]string{"disk": "net", "vm": "disk"}
	tests := []struct {
		name string
		// The change of each resource: create, update, delete, replace, or create-first.
		actions map[string]string
		want    string
	}{
		{"all created", map[string]string{"net": "create", "disk": "create", "vm": "create"}, "+net +disk +vm"},
		{"all deleted", map[string]string{"net": "delete", "disk": "delete", "vm": "delete"}, "-vm -disk -net"},
		{"the last replaced", map[string]string{"vm": "replace"}, "-vm +vm"},
		{"the middle replaced, its dependent updated", map[string]string{"disk": "replace", "vm": "update"}, "-disk +disk ~vm"},
		{"all replaced: destroyed in reverse, then created", map[string]string{"net": "replace", "disk": "replace", "vm": "replace"}, "-vm -disk -net +net +disk +vm"},
		{"create before destroy: the old one goes when its dependent uses the new one", map[string]string{"disk": "create-first", "vm": "update"}, "+disk ~vm -disk"},
		{"all created first", map[string]string{"net": "create-first", "disk": "create-first", "vm": "create-first"}, "+net +disk +vm -vm -disk -net"},
		{"two deleted, and their dependency updated", map[string]string{"net": "update", "disk": "delete", "vm": "delete"}, "-vm -disk ~net"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			steps, edges := applySteps(depends, tt.actions)
			p, err := build(t, len(steps), edges).Walk(ByNumber, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for n, ok := p.Next(); ok; n, ok = p.Next() {
				got = append(got, steps[n])
				p.Done(n)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %s, want %s", strings.Join(got, " "), tt.want)
			}
		})
	}
}

// TestCreateFirstPropagates: a resource that is created first cannot depend on one that is
// destroyed first. The graph shows the cycle. The remedy is to create the dependencies first, too.
func TestCreateFirstPropagates(t *testing.T) {
	depends := map[string]string{"disk": "net", "vm": "disk"}
	steps, edges := applySteps(depends, map[string]string{"disk": "replace", "vm": "create-first"})
	found := build(t, len(steps), edges).Cycles()
	if len(found) != 1 {
		t.Fatalf("the cycles are %v", found)
	}
	if got := Path(found[0], func(n int32) string { return steps[n] }); got != "-disk → -vm → +vm → +disk → -disk" {
		t.Errorf("the cycle is %s", got)
	}
	steps, edges = applySteps(depends, map[string]string{"disk": "create-first", "vm": "create-first"})
	order, ok := build(t, len(steps), edges).Order()
	if !ok {
		t.Fatal("there is still a cycle")
	}
	var got []string
	for _, n := range order {
		got = append(got, steps[n])
	}
	if strings.Join(got, " ") != "+disk +vm -vm -disk" {
		t.Errorf("the order is %v", got)
	}
}

// applySteps returns the steps of an apply and their dependencies.
func applySteps(depends map[string]string, actions map[string]string) (steps []string, edges []Edge) {
	make, destroy := map[string]int32{}, map[string]int32{}
	step := func(in map[string]int32, sign, name string) {
		in[name] = int32(len(steps))
		steps = append(steps, sign+name)
	}
	for _, name := range []string{"net", "disk", "vm"} {
		switch actions[name] {
		case "create":
			step(make, "+", name)
		case "update":
			step(make, "~", name)
		case "delete":
			step(destroy, "-", name)
		case "replace":
			step(destroy, "-", name)
			step(make, "+", name)
			edges = append(edges, Edge{make[name], destroy[name]})
		case "create-first":
			step(make, "+", name)
			step(destroy, "-", name)
			edges = append(edges, Edge{destroy[name], make[name]})
		}
	}
	between := func(a map[string]int32, from string, b map[string]int32, to string) {
		f, ok := a[from]
		t, ok2 := b[to]
		if ok && ok2 {
			edges = append(edges, Edge{f, t})
		}
	}
	for dependent, dependency := range depends {
		between(make, dependent, make, dependency)       // created after its dependency
		between(destroy, dependency, destroy, dependent) // destroyed after its dependents
		if actions[dependency] == "create-first" {
			between(destroy, dependency, make, dependent) // and after its dependents use the new one
		}
		if actions[dependent] == "delete" && actions[dependency] == "update" {
			between(make, dependency, destroy, dependent) // updated when the deleted dependent no longer uses it
		}
	}
	return steps, edges
}

// TestParallel: many goroutines with one lock. Each node starts after all its dependencies have
// ended.
func TestParallel(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	const nodes = 2000
	g := build(t, nodes, randomEdges(random, nodes, 3*nodes, true))
	p, err := g.Walk(ByPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	var lock sync.Mutex
	changed := sync.NewCond(&lock)
	var ended [nodes]bool
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			lock.Lock()
			defer lock.Unlock()
			for p.Left() > 0 {
				n, ok := p.Next()
				if !ok {
					changed.Wait()
					continue
				}
				lock.Unlock()
				// The lock is not held here: a real caller would call a provider.
				for range n % 7 {
					_ = g.Dependencies(n)
				}
				lock.Lock()
				for _, d := range g.Dependencies(n) {
					if !ended[d] {
						t.Errorf("%d was started before %d had ended", n, d)
					}
				}
				ended[n] = true
				p.Done(n)
				changed.Broadcast()
			}
		})
	}
	all.Wait()
	if p.Count(Done) != nodes {
		t.Errorf("%d of %d are done", p.Count(Done), nodes)
	}
}

// shape is a graph for benchmarks.
type shape struct {
	name  string
	edges func(n int) []Edge
}

var shapes = []shape{
	{"flat", func(int) []Edge { return nil }},
	{"chains", func(n int) []Edge { // 100 of them
		var out []Edge
		for i := 100; i < n; i++ {
			out = append(out, Edge{int32(i), int32(i - 100)})
		}
		return out
	}},
	{"cross", func(n int) []Edge { // each refers to three of the first half
		random := rand.New(rand.NewSource(1))
		var out []Edge
		for i := n / 2; i < n; i++ {
			for range 3 {
				out = append(out, Edge{int32(i), int32(random.Intn(n / 2))})
			}
		}
		return out
	}},
	{"hub", func(n int) []Edge { // all depend on one
		var out []Edge
		for i := 1; i < n; i++ {
			out = append(out, Edge{int32(i), 0})
		}
		return out
	}},
}

func eachShape(b *testing.B, run func(b *testing.B, n int, edges []Edge)) {
	for _, s := range shapes {
		for _, n := range []int{10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/%d", s.name, n), func(b *testing.B) {
				edges := s.edges(n)
				b.ReportAllocs()
				b.ResetTimer()
				run(b, n, edges)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n+len(edges)), "ns/node+edge")
			})
		}
	}
}

// BenchmarkBuild builds a graph and searches for cycles.
func BenchmarkBuild(b *testing.B) {
	eachShape(b, func(b *testing.B, n int, edges []Edge) {
		for b.Loop() {
			if g := build(b, n, edges); g.Cycles() != nil {
				b.Fatal("a cycle")
			}
		}
	})
}

// BenchmarkWalk walks a whole graph.
func BenchmarkWalk(b *testing.B) {
	eachShape(b, func(b *testing.B, n int, edges []Edge) {
		g := build(b, n, edges)
		for b.Loop() {
			p, err := g.Walk(ByPath, nil)
			if err != nil {
				b.Fatal(err)
			}
			for node, ok := p.Next(); ok; node, ok = p.Next() {
				p.Done(node)
			}
		}
	})
}
