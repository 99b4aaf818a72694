package infra

import (
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// How much an edge matters. The rules of infra/graph are edges that must be; the others are better so, and are given up
// where a cycle would come of them.
type weight uint8

const (
	must weight = iota
	// inUse: what is used is taken away after what uses it. States are of different times, and can say of each
	// other that they are used: then it does not matter which goes first.
	inUse
	// leaving: what was used is taken away when what used it has been changed not to.
	leaving
	// sparing: what is replaced is not taken away before what the new one needs is there.
	sparing
	// yielding: what is used is changed when what is to go no longer uses it.
	yielding
)

// order is what each step waits for.
type order struct {
	edges   []graph.Edge
	weights []weight
	graph   *graph.Graph
}

// ordering collects the edges.
type ordering struct {
	engine   *Engine
	applyUID string
	steps    *steps
	out      order
	names    map[string]reference.Ref // by namespace/name of the ResourceState
	seen     map[graph.Edge]struct{}
}

// order puts steps in order as infra/graph says how an apply is modelled.
func (e *Engine) order(applyUID string, s *steps) (*order, error) {
	o := &ordering{engine: e, applyUID: applyUID, steps: s, names: map[string]reference.Ref{}, seen: map[graph.Edge]struct{}{}}
	for ref := range s.of {
		if kind, err := e.Providers.Kind(ref); err == nil && ref.Kind == reference.Resource {
			o.names[ref.Namespace+"/"+stateNameOf(kind, ref.Name)] = ref
		}
	}
	done := map[*parts]bool{}
	for n := range s.all {
		if p := s.of[s.all[n].ref]; !done[p] {
			done[p] = true
			o.of(s.all[n].ref, p)
		}
	}
	o.workloads()
	return o.settle()
}

// edge has one step wait for another.
func (o *ordering) edge(from, to int32, w weight) {
	if from == noStep || to == noStep || from == to {
		return
	}
	e := graph.Edge{From: from, To: to}
	if _, there := o.seen[e]; there {
		return
	}
	o.seen[e] = struct{}{}
	o.out.edges, o.out.weights = append(o.out.edges, e), append(o.out.weights, w)
}

// of are the edges of one object's steps to those of what it refers to, by what is written and by what
// is stored.
func (o *ordering) of(ref reference.Ref, a *parts) {
	if a.make != noStep && a.destroy != noStep {
		if a.change.createFirst {
			o.edge(a.destroy, a.make, must)
		} else {
			o.edge(a.make, a.destroy, must)
		}
	}
	written := map[reference.Ref]bool{}
	if a.make != noStep {
		for _, used := range o.engine.written(ref) {
			written[used] = true
			if b := o.steps.of[used]; b != nil {
				o.made(a, b)
			}
		}
	}
	for _, used := range o.stored(ref) {
		b := o.steps.of[used]
		if b == nil {
			continue
		}
		if a.destroy != noStep {
			o.destroyed(a, b)
		} else if !written[used] {
			o.edge(b.destroy, a.make, leaving)
		}
	}
	for _, n := range a.deposed {
		old := deposed(o.engine.World.State(ref), o.steps.all[n].address.Deposed)
		if old == nil {
			continue
		}
		for _, used := range o.named(ref.Namespace, old.Dependencies) {
			if b := o.steps.of[used]; b != nil {
				o.edge(b.destroy, n, inUse)
			}
		}
	}
}

// made: a, which is made or changed, refers to b.
func (o *ordering) made(a, b *parts) {
	o.edge(a.make, b.make, must)
	if b.change != nil && b.change.createFirst {
		o.edge(b.destroy, a.make, must)
	}
	for _, old := range b.deposed {
		o.edge(old, a.make, leaving)
	}
	if b.change != nil && (b.change.action == plan.Create || b.change.action == plan.Read || b.change.createFirst) {
		o.edge(a.destroy, b.make, sparing)
	}
}

// destroyed: a, which is taken away or replaced, was made from b.
func (o *ordering) destroyed(a, b *parts) {
	o.edge(b.destroy, a.destroy, inUse)
	if a.make == noStep && b.change != nil && b.change.action == plan.Update {
		o.edge(b.make, a.destroy, yielding)
	}
	for _, old := range b.deposed {
		o.edge(old, a.destroy, leaving)
	}
}

// written are the resources and data sources that an object refers to, and those that the data sources
// among them refer to.
func (e *Engine) written(ref reference.Ref) []reference.Ref {
	var out []reference.Ref
	seen := map[reference.Ref]bool{ref: true}
	queue := e.refersTo(ref)
	for at := 0; at < len(queue); at++ {
		used := queue[at]
		if seen[used] {
			continue
		}
		seen[used] = true
		out = append(out, used)
		if used.Kind == reference.Data {
			queue = append(queue, e.refersTo(used)...)
		}
	}
	return out
}

// refersTo are the resources and data sources that the spec of an object names. Of one that cannot be read there are none:
// it is refused when it is evaluated.
func (e *Engine) refersTo(ref reference.Ref) []reference.Ref {
	object := e.World.Object(ref)
	if object == nil {
		return nil
	}
	_, refs := readSpec(e.Language, object)
	return refs
}

// stored are the resources that one was made from. If its state does not say, which is so for one that was
// imported, what is written is taken for it.
func (o *ordering) stored(ref reference.Ref) []reference.Ref {
	state := o.engine.World.State(ref)
	if state == nil {
		return nil
	}
	from := state.Spec.Current
	if old := deposed(state, deposedKey(o.applyUID, addressOf(ref))); old != nil {
		from = &old.ResourceValue // the new one is there already, from before a crash
	}
	switch {
	case from == nil:
		return nil
	case len(from.Dependencies) == 0:
		return o.engine.written(ref)
	}
	return o.named(ref.Namespace, from.Dependencies)
}

func (o *ordering) named(namespace string, states []string) []reference.Ref {
	var out []reference.Ref
	for _, name := range states {
		if ref, there := o.names[namespace+"/"+name]; there {
			out = append(out, ref)
		}
	}
	return out
}

// settle makes a graph, and gives up edges that need not be as long as there are cycles.
func (o *ordering) settle() (*order, error) {
	for {
		g, err := graph.New(len(o.steps.all), o.out.edges)
		if err != nil {
			return nil, err
		}
		cycles := g.Cycles()
		if len(cycles) == 0 {
			o.out.graph = g
			return &o.out, nil
		}
		if !o.giveUp(cycles) {
			return nil, fmt.Errorf("%w: %s", errEntangled, graph.Path(cycles[0], o.steps.name))
		}
	}
}

// errEntangled is of changes that nobody can carry out one after another.
var errEntangled = errors.New("the changes wait for each other, and nothing was carried out: plan and apply some of them first, with targets")

// giveUp takes out of each cycle the edge that matters least; false if one has none.
func (o *ordering) giveUp(cycles [][]int32) bool {
	least := map[graph.Edge]bool{}
	weights := make(map[graph.Edge]weight, len(o.out.edges))
	for i, e := range o.out.edges {
		weights[e] = o.out.weights[i]
	}
	for _, cycle := range cycles {
		var last graph.Edge
		found, old := must, true // old: nothing but inUse
		for i, from := range cycle {
			e := graph.Edge{From: from, To: cycle[(i+1)%len(cycle)]}
			old = old && weights[e] == inUse
			if weights[e] >= found {
				last, found = e, weights[e]
			}
		}
		if found <= inUse && !old {
			return false
		}
		least[last] = true
	}
	kept := 0
	for i, e := range o.out.edges {
		if !least[e] {
			o.out.edges[kept], o.out.weights[kept] = e, o.out.weights[i]
			kept++
		}
	}
	o.out.edges, o.out.weights = o.out.edges[:kept], o.out.weights[:kept]
	return true
}
