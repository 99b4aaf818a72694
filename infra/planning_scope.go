package infra

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/graph"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// narrow finds what waits for what, and what of it is to be planned.
func (r *run) narrow() error {
	for i := range r.slots {
		s := &r.slots[i]
		if i >= r.count {
			s.same, s.sound = true, true
			continue
		}
		s.removed = s.object == nil || s.object.Deleting || r.what.Mode == plan.Destroy
	}
	r.connect()
	if err := r.untangle(); err != nil {
		return err
	}
	for _, at := range r.named(r.what.Replace, "to be replaced") {
		r.slots[at].replace = true
	}
	r.choose()
	return nil
}

// connect notes what waits for what: who refers to something waits for it; and what is removed waits for all
// that was made from it, to be removed or changed before.
func (r *run) connect() {
	removed := map[string]int32{} // by the names of their states
	for i := range r.count {
		s := &r.slots[i]
		if s.removed && s.state != nil && r.what.Mode != plan.RefreshOnly {
			removed[stateName(s.state)] = int32(i)
		}
		if !s.living() || r.what.Mode == plan.RefreshOnly && !s.data() {
			continue
		}
		for _, u := range s.uses {
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
		if s.state == nil {
			continue
		}
		made := func(v *v1alpha1.ResourceValue) {
			for _, name := range v.Dependencies {
				if of, is := removed[name]; is && of != int32(i) {
					r.edges = append(r.edges, graph.Edge{From: of, To: int32(i)})
				}
			}
		}
		if s.state.Spec.Current != nil {
			made(s.state.Spec.Current)
		}
		for d := range s.state.Spec.Deposed {
			made(&s.state.Spec.Deposed[d].ResourceValue)
		}
	}
}

// stateName is what a ResourceState is called, as stateNameOf says of an object. It needs neither the object nor who serves it.
func stateName(s *State) string {
	of := s.Spec.Object
	provider, _, _ := strings.Cut(of.Group, ".")
	return v1alpha1.StateName(schema.Plural(of.Kind), provider, of.Name)
}

// untangle makes the graph. Objects that refer to each other in a circle cannot be planned, and say so; states may do so,
// because they are of different times, and then it does not matter which is removed first.
func (r *run) untangle() error {
	for {
		g, err := graph.New(r.count, r.edges)
		if err != nil {
			return err
		}
		if r.graph == nil {
			r.spread(g)
		}
		r.graph = g
		if _, ok := g.Order(); ok {
			return nil
		}
		in := map[int32]bool{}
		for _, cycle := range g.Cycles() {
			text := graph.Path(cycle, func(n int32) string { return r.slots[n].ref.String() })
			for _, n := range cycle {
				in[n] = true
				if s := &r.slots[n]; s.living() {
					s.circle = text
				}
			}
		}
		r.edges = slices.DeleteFunc(r.edges, func(e graph.Edge) bool { return in[e.From] && in[e.To] })
	}
}

// spread notes what is created before the old one is destroyed: what says so, and all that it is made from. That has to
// be there by then.
func (r *run) spread(g *graph.Graph) {
	var first []int32
	for i := range r.count {
		if s := &r.slots[i]; s.first && s.living() {
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

// choose decides what is planned: what is asked for, with all that it waits for; and not what is excluded, nor what
// waits for that.
func (r *run) choose() {
	if r.what.Selector == nil && r.what.Targets == nil && len(r.what.Exclude) == 0 {
		return
	}
	asked := r.named(r.what.Targets, "to be planned")
	if r.what.Targets == nil {
		for i := range r.count {
			asked = append(asked, int32(i))
		}
	}
	asked = slices.DeleteFunc(asked, func(i int32) bool { return !r.selected(&r.slots[i]) })
	r.scope = r.graph.WithDependencies(asked...)
	if len(r.what.Exclude) == 0 {
		return
	}
	out, kept := r.graph.WithDependents(r.named(r.what.Exclude, "to be left out")...), graph.NewSet(r.count)
	for i := range r.scope.All() {
		if !out.Has(i) {
			kept.Add(i)
		}
	}
	r.scope = kept
}

func (r *run) selected(s *slot) bool {
	if r.what.Selector == nil {
		return true
	}
	return s.object != nil && r.what.Selector.Matches(labels.Set(s.object.Labels))
}

// named finds what was named. What is not there is a problem.
func (r *run) named(refs []reference.Ref, purpose string) []int32 {
	var out []int32
	for _, ref := range refs {
		at, is := r.find(ref)
		if !is {
			r.complain(r.nameOf(ref), "", fmt.Sprintf("it was named %s, and there is nothing of that name in the namespace %q: correct the name", purpose, r.what.Namespace))
			continue
		}
		out = append(out, at)
	}
	return out
}
