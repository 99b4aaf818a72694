package alike

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Generator makes a configuration, and steps of change. The same seed gives the same ones, as long as it is
// told the same of what is left after each.
type Generator struct {
	*rand.Rand
	// names counts those that were given.
	names int
	// current is what is written now.
	current *Configuration
	// forgetting is what is no longer written and is to be left alone, until it is so.
	forgetting []Address
	// Old says that resources of demo5 are made too.
	Old bool
}

// NewGenerator begins with nothing written.
func NewGenerator(seed uint64) *Generator {
	g := &Generator{Rand: rand.New(rand.NewPCG(seed, 7)), current: &Configuration{}}
	g.Old = g.IntN(3) == 0
	return g
}

// chance is true in so many of a hundred cases.
func (g *Generator) chance(of100 int) bool { return g.IntN(100) < of100 }

func one[T any](g *Generator, of ...T) T { return of[g.IntN(len(of))] }

// word is one of few, so that a change may be none.
func (g *Generator) word() string {
	return one(g, "alpha", "beta", "gamma", "delta", "", "a b", "costs $5", "literal ${not.one}", "100%", "line\nbreak", `"quoted"`, "ünïcode")
}

// plainWord has only what names may have.
func (g *Generator) plainWord() string { return one(g, "alpha", "beta", "gamma", "delta") }

func (g *Generator) fresh(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

// First is the first configuration: three to twelve resources.
func (g *Generator) First() *Step {
	for range 3 + g.IntN(10) {
		g.add()
	}
	g.addData()
	return g.step("made")
}

func (g *Generator) step(what string) *Step {
	return &Step{What: what, Configuration: g.current.clone(), Forget: slices.Clone(g.forgetting), Refresh: true}
}

// add appends a resource.
func (g *Generator) add() {
	all := kinds()
	k := one(g, all...)
	for provider(k.typ) == "demo5" && !g.Old {
		k = one(g, all...)
	}
	g.addOf(k)
}

func (g *Generator) addOf(k kind) *Resource {
	r := &Resource{Address: Address{Type: k.typ, Name: g.fresh("r")}}
	before := g.current.Resources
	arguments, possible := g.arguments(r.Address, before)
	if !possible { // it needs a network
		g.addOf(kindOf(provider(k.typ) + "_network"))
		before = g.current.Resources
		arguments, _ = g.arguments(r.Address, before)
	}
	r.Arguments = arguments
	g.lifecycle(r, before)
	g.current.Resources = append(g.current.Resources, r)
	return r
}

func (g *Generator) lifecycle(r *Resource, before []*Resource) {
	r.Lifecycle = Lifecycle{CreateBeforeDestroy: g.chance(15)}
	if g.chance(4) {
		r.Lifecycle.PreventDestroy = true
	}
	if g.chance(8) {
		r.Lifecycle.IgnoreChanges = []string{one(g, ignorable(r)...)}
	}
	managed := managedOf(before)
	if g.chance(8) && len(managed) > 0 {
		of := one(g, managed...)
		ref := Ref{Of: of.Address}
		if g.chance(50) {
			ref.Attribute = one(g, kindOf(of.Type).texts...)
		}
		r.Lifecycle.ReplaceTriggeredBy = []Ref{ref}
	}
	r.DependsOn = nil
	if g.chance(10) && len(managed) > 0 {
		r.DependsOn = []Address{one(g, managed...).Address}
	}
}

// ignorable are arguments that a resource has.
func ignorable(r *Resource) []string {
	out := []string{"name"}
	for name := range r.Arguments {
		if name != "name" && name != "faults" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func managedOf(all []*Resource) []*Resource {
	return slices.DeleteFunc(slices.Clone(all), func(r *Resource) bool { return r.Data })
}

// addData appends a data source that finds a resource, in every third configuration.
func (g *Generator) addData() {
	found := managedOf(g.current.Resources)
	found = slices.DeleteFunc(found, func(r *Resource) bool { return provider(r.Type) != "demo" })
	if !g.chance(33) || len(found) == 0 {
		return
	}
	of := one(g, found...)
	r := &Resource{Address: Address{Type: "demo_lookup", Name: g.fresh("d"), Data: true}, Arguments: map[string]any{
		"type": of.Type, "name": Ref{of.Address, "name"},
	}}
	if g.chance(60) {
		r.Arguments["after"] = Ref{of.Address, "id"}
	} else {
		r.DependsOn = []Address{of.Address}
	}
	g.current.Resources = append(g.current.Resources, r)
	user := &Resource{Address: Address{Type: "demo_cross", Name: g.fresh("r")}, Arguments: map[string]any{
		"name": g.fresh("n"), "references": []any{Ref{r.Address, "id"}},
	}}
	g.current.Resources = append(g.current.Resources, user)
}
