package applier

import (
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/graph"
)

// weight says whether an edge can be dropped. Edges that follow the rules of infra/graph are
// required. The others are preferred, and dropped where they would form a cycle.
type weight uint8

const (
	required weight = iota
	// destroyUserFirst: a resource is destroyed after those that use it. States of different age
	// can claim to use each other; then their order does not matter.
	destroyUserFirst
	// updateUserFirst: a resource is destroyed after its former user was updated.
	updateUserFirst
	// createUsedFirst: a replaced resource is destroyed after the dependencies of its successor
	// exist.
	createUsedFirst
	// destroyUserBeforeUpdate: a resource is updated after a user that goes away was destroyed.
	destroyUserBeforeUpdate
)

// stepOrder is the dependency graph of the steps.
type stepOrder struct {
	edges   []graph.Edge
	weights []weight
	graph   *graph.Graph
}

// orderBuilder collects the edges.
type orderBuilder struct {
	applier  *Applier
	applyUID string
	steps    *stepSet
	out      stepOrder
	names    map[string]expr.Ref // by namespace/name of the ResourceState
	seen     map[graph.Edge]struct{}
}

// order builds the step graph by the rules in the DESIGN.md of infra/graph.
func (e *Applier) order(applyUID string, s *stepSet) (*stepOrder, error) {
	o := &orderBuilder{applier: e, applyUID: applyUID, steps: s, names: map[string]expr.Ref{}, seen: map[graph.Edge]struct{}{}}
	for ref := range s.byRef {
		if kind, err := e.Providers.Kind(ref); err == nil && ref.Kind == expr.Resource {
			o.names[ref.Namespace+"/"+kind.StateName(ref.Name)] = ref
		}
	}
	// Names that a state had before count where no other resource has them now.
	for ref := range s.byRef {
		if state := o.stateOf(ref); state != nil && ref.Kind == expr.Resource && (state.Ref != ref || len(state.Spec.FormerNames) > 0) {
			for _, name := range state.Names() {
				if _, used := o.names[ref.Namespace+"/"+name]; !used {
					o.names[ref.Namespace+"/"+name] = ref
				}
			}
		}
	}
	done := map[*objectSteps]bool{}
	for n := range s.all {
		if p := s.byRef[s.all[n].ref]; !done[p] {
			done[p] = true
			o.addObject(s.all[n].ref, p)
		}
	}
	o.addWorkloads()
	return o.build()
}

// stateOf returns the state of a resource: of its old address, as long as it is not moved.
func (o *orderBuilder) stateOf(ref expr.Ref) *infra.State {
	if state := o.applier.Inventory.State(ref); state != nil {
		return state
	}
	p := o.steps.byRef[ref]
	if p == nil {
		return nil
	}
	for _, n := range append([]int32{p.upsert, p.destroy}, p.deposed...) {
		if n != noStep && o.steps.all[n].movedFrom != nil {
			return o.applier.Inventory.State(*o.steps.all[n].movedFrom)
		}
	}
	return nil
}

// edge makes one step wait for another.
func (o *orderBuilder) edge(from, to int32, w weight) {
	if from == noStep || to == noStep || from == to {
		return
	}
	e := graph.Edge{From: from, To: to}
	if _, ok := o.seen[e]; ok {
		return
	}
	o.seen[e] = struct{}{}
	o.out.edges, o.out.weights = append(o.out.edges, e), append(o.out.weights, w)
}

// addObject adds the edges from the steps of one object to those of its dependencies, both desired
// and stored.
func (o *orderBuilder) addObject(ref expr.Ref, a *objectSteps) {
	if a.upsert != noStep && a.destroy != noStep {
		if a.change.createFirst {
			o.edge(a.destroy, a.upsert, required)
		} else {
			o.edge(a.upsert, a.destroy, required)
		}
	}
	desired := map[expr.Ref]bool{}
	if a.upsert != noStep {
		for _, used := range o.applier.desiredDependencies(ref) {
			desired[used] = true
			if b := o.steps.byRef[used]; b != nil {
				o.addUpsert(a, b)
			}
		}
	}
	for _, used := range o.priorDependencies(ref) {
		b := o.steps.byRef[used]
		if b == nil {
			continue
		}
		if a.destroy != noStep {
			o.addDestroy(a, b)
		} else if !desired[used] {
			o.edge(b.destroy, a.upsert, updateUserFirst)
		}
	}
	for _, n := range a.deposed {
		old := findDeposed(o.stateOf(ref), o.steps.all[n].address.Deposed)
		if old == nil {
			continue
		}
		for _, used := range o.resolveStates(ref.Namespace, old.Dependencies) {
			if b := o.steps.byRef[used]; b != nil {
				o.edge(b.destroy, n, destroyUserFirst)
			}
		}
	}
}

// addUpsert adds the edges for a, which is created or updated and refers to b.
func (o *orderBuilder) addUpsert(a, b *objectSteps) {
	o.edge(a.upsert, b.upsert, required)
	if b.change != nil && b.change.createFirst {
		o.edge(b.destroy, a.upsert, required)
	}
	for _, old := range b.deposed {
		o.edge(old, a.upsert, updateUserFirst)
	}
	if b.change != nil && (b.change.action == change.Create || b.change.action == change.Read || b.change.createFirst) {
		o.edge(a.destroy, b.upsert, createUsedFirst)
	}
}

// addDestroy adds the edges for a, which is destroyed or replaced and was created from b.
func (o *orderBuilder) addDestroy(a, b *objectSteps) {
	o.edge(b.destroy, a.destroy, destroyUserFirst)
	if a.upsert == noStep && b.change != nil && b.change.action == change.Update {
		o.edge(b.upsert, a.destroy, destroyUserBeforeUpdate)
	}
	for _, old := range b.deposed {
		o.edge(old, a.destroy, updateUserFirst)
	}
}

// desiredDependencies returns the resources and data sources that an object refers to, directly or
// through data sources.
func (e *Applier) desiredDependencies(ref expr.Ref) []expr.Ref {
	var out []expr.Ref
	seen := map[expr.Ref]bool{ref: true}
	queue := e.Inventory.Uses(ref)
	for at := 0; at < len(queue); at++ {
		used := queue[at]
		if seen[used] {
			continue
		}
		seen[used] = true
		out = append(out, used)
		if used.Kind == expr.Data {
			queue = append(queue, e.Inventory.Uses(used)...)
		}
	}
	return out
}

// priorDependencies returns the resources that a resource was created from. For an imported one the
// state does not record them, so that the desired ones are used.
func (o *orderBuilder) priorDependencies(ref expr.Ref) []expr.Ref {
	state := o.stateOf(ref)
	if state == nil {
		return nil
	}
	from := state.Spec.Current
	if old := findDeposed(state, deposedKey(o.applyUID, infra.AddressOf(ref))); old != nil {
		from = &old.ResourceValue // the new one exists, created before a crash
	}
	switch {
	case from == nil:
		return nil
	case len(from.Dependencies) == 0:
		return o.applier.desiredDependencies(ref)
	}
	return o.resolveStates(ref.Namespace, from.Dependencies)
}

func (o *orderBuilder) resolveStates(namespace string, states []string) []expr.Ref {
	var out []expr.Ref
	for _, name := range states {
		if ref, ok := o.names[namespace+"/"+name]; ok {
			out = append(out, ref)
		}
	}
	return out
}

// build creates the graph and drops optional edges until there are no cycles.
func (o *orderBuilder) build() (*stepOrder, error) {
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
		if !o.dropWeakest(cycles) {
			return nil, fmt.Errorf("%w: %s", errStepCycle, graph.Path(cycles[0], o.steps.name))
		}
	}
}

// errStepCycle is returned for changes that cannot be ordered.
var errStepCycle = errors.New("the changes depend on each other in a cycle, and nothing was applied: plan and apply some of them first, with targets")

// dropWeakest removes the weakest edge of each cycle. It returns false if a cycle has none to
// remove.
func (o *orderBuilder) dropWeakest(cycles [][]int32) bool {
	drop := map[graph.Edge]bool{}
	weights := make(map[graph.Edge]weight, len(o.out.edges))
	for i, e := range o.out.edges {
		weights[e] = o.out.weights[i]
	}
	for _, cycle := range cycles {
		var edge graph.Edge
		weakest, onlyUserFirst := required, true // whether all edges are destroyUserFirst
		for i, from := range cycle {
			e := graph.Edge{From: from, To: cycle[(i+1)%len(cycle)]}
			onlyUserFirst = onlyUserFirst && weights[e] == destroyUserFirst
			if weights[e] >= weakest {
				edge, weakest = e, weights[e]
			}
		}
		if weakest <= destroyUserFirst && !onlyUserFirst {
			return false
		}
		drop[edge] = true
	}
	kept := 0
	for i, e := range o.out.edges {
		if !drop[e] {
			o.out.edges[kept], o.out.weights[kept] = e, o.out.weights[i]
			kept++
		}
	}
	o.out.edges, o.out.weights = o.out.edges[:kept], o.out.weights[:kept]
	return true
}
