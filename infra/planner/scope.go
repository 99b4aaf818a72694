package planner

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/graph"
)

// prepare builds the dependency graph and selects the part of it to plan.
func (r *run) prepare() error {
	for i := range r.slots {
		s := &r.slots[i]
		if i >= r.count {
			s.unchanged, s.cacheable = true, true
			continue
		}
		s.removed = s.Object == nil || s.Object.Deleting || r.opts.Mode == change.Destroy
	}
	r.applyMoves()
	r.addEdges()
	if err := r.buildGraph(); err != nil {
		return err
	}
	for _, at := range r.resolve(r.opts.Replace, "replace") {
		r.slots[at].replace = true
	}
	r.selectScope()
	return nil
}

// addEdges adds the edges of the graph. A resource depends on those it refers to. A resource that
// is removed depends on those created from it: they are removed or changed first.
func (r *run) addEdges() {
	removed := map[string][]int32{} // by the names of their states
	for i := range r.count {
		s := &r.slots[i]
		if s.removed && s.State != nil && r.opts.Mode != change.RefreshOnly {
			for _, name := range s.State.Names() {
				removed[name] = append(removed[name], int32(i))
			}
		}
		if !s.isDesired() || r.opts.Mode == change.RefreshOnly && !s.IsData() {
			continue
		}
		if s.forgotten != nil {
			if old, found := r.taken.Find(s.forgotten.Ref); found {
				r.edges = append(r.edges, graph.Edge{From: old, To: int32(i)})
			}
		}
		for _, u := range s.Uses {
			switch {
			case int(u) >= r.count:
			case r.slots[u].removed:
				r.edges = append(r.edges, graph.Edge{From: u, To: int32(i)})
			default:
				r.edges = append(r.edges, graph.Edge{From: int32(i), To: u})
			}
		}
	}
	if len(removed) == 0 {
		return
	}
	for i := range r.count {
		s := &r.slots[i]
		if s.State == nil {
			continue
		}
		createdFrom := func(v *v1alpha1.ResourceValue) {
			for _, name := range v.Dependencies {
				for _, user := range removed[name] {
					if user != int32(i) {
						r.edges = append(r.edges, graph.Edge{From: user, To: int32(i)})
					}
				}
			}
		}
		if s.State.Spec.Current != nil {
			createdFrom(s.State.Spec.Current)
		}
		for d := range s.State.Spec.Deposed {
			createdFrom(&s.State.Spec.Deposed[d].ResourceValue)
		}
	}
}

// buildGraph builds the graph. Objects in a reference cycle are not planned and get a problem.
// States can form a cycle because they are of different age; then the order of removal does not
// matter.
func (r *run) buildGraph() error {
	for {
		g, err := graph.New(r.count, r.edges)
		if err != nil {
			return err
		}
		if r.graph == nil {
			r.propagateCreateFirst(g)
		}
		r.graph = g
		if _, ok := g.Order(); ok {
			return nil
		}
		in := map[int32]bool{}
		for _, cycle := range g.Cycles() {
			text := graph.Path(cycle, func(n int32) string { return r.slots[n].Ref.String() })
			for _, n := range cycle {
				in[n] = true
				if s := &r.slots[n]; s.isDesired() {
					s.cycle = text
				}
			}
		}
		r.edges = slices.DeleteFunc(r.edges, func(e graph.Edge) bool { return in[e.From] && in[e.To] })
	}
}

// propagateCreateFirst marks resources with create_before_destroy and all their dependencies, whose
// successors must exist by then.
func (r *run) propagateCreateFirst(g *graph.Graph) {
	var first []int32
	for i := range r.count {
		if s := &r.slots[i]; s.CreateBeforeDestroy && s.isDesired() {
			first = append(first, int32(i))
		}
	}
	if len(first) == 0 {
		return
	}
	for i := range g.WithDependencies(first...).All() {
		r.slots[i].createFirst = true
	}
}

// selectScope selects the requested resources with their dependencies, without the excluded ones
// and their dependents.
func (r *run) selectScope() {
	if r.opts.Selector == nil && r.opts.Targets == nil && len(r.opts.Exclude) == 0 {
		return
	}
	requested := r.resolve(r.opts.Targets, "targets")
	if r.opts.Targets == nil {
		for i := range r.count {
			requested = append(requested, int32(i))
		}
	}
	requested = slices.DeleteFunc(requested, func(i int32) bool { return !r.matchesSelector(&r.slots[i]) })
	r.scope = r.graph.WithDependencies(requested...)
	if len(r.opts.Exclude) == 0 {
		return
	}
	excluded, kept := r.graph.WithDependents(r.resolve(r.opts.Exclude, "exclude")...), graph.NewSet(r.count)
	for i := range r.scope.All() {
		if !excluded.Has(i) {
			kept.Add(i)
		}
	}
	r.scope = kept
}

func (r *run) matchesSelector(s *slot) bool {
	if r.opts.Selector == nil {
		return true
	}
	return s.Object != nil && r.opts.Selector.Matches(labels.Set(s.Object.Labels))
}

// resolve returns the slots of named resources. A missing one is a problem.
func (r *run) resolve(refs []expr.Ref, option string) []int32 {
	var out []int32
	for _, ref := range refs {
		at, ok := r.taken.Find(ref)
		if !ok {
			r.addProblem(r.nameOf(ref), "", fmt.Sprintf("listed in %s, but not found in namespace %q: correct the name", option, r.opts.Namespace))
			continue
		}
		out = append(out, at)
	}
	return out
}
