package differential

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Generator generates a configuration and steps that change it. The same seed gives the same steps, provided that each
// step has the same result.
type Generator struct {
	*rand.Rand
	// names counts the generated names, which makes each unique.
	names int
	// current is the configuration of the latest step.
	current *Configuration
	// forgetting lists removed resources that are to be forgotten and are still in the state.
	forgetting []Address
	// UseDemo5 adds resources of demo5, the test provider with plugin protocol 5.
	UseDemo5 bool
}

// NewGenerator returns a generator that starts from an empty configuration.
func NewGenerator(seed uint64) *Generator {
	g := &Generator{Rand: rand.New(rand.NewPCG(seed, 7)), current: &Configuration{}}
	g.UseDemo5 = g.IntN(3) == 0
	return g
}

// chance returns true with the given probability in percent.
func (g *Generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g *Generator, of ...T) T { return of[g.IntN(len(of))] }

// word returns one of few words, so that a new value sometimes equals the old one.
func (g *Generator) word() string {
	return pick(g, "alpha", "beta", "gamma", "delta", "", "a b", "costs $5", "literal ${not.one}", "100%", "line\nbreak", `"quoted"`, "ünïcode")
}

// plainWord returns a word of characters that are valid in names.
func (g *Generator) plainWord() string { return pick(g, "alpha", "beta", "gamma", "delta") }

func (g *Generator) newName(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

// First returns the first step, which creates three to twelve resources.
func (g *Generator) First() *Step {
	for range 3 + g.IntN(10) {
		g.add()
	}
	g.addData()
	return g.step("create")
}

func (g *Generator) step(what string) *Step {
	return &Step{Description: what, Configuration: g.current.clone(), Forget: slices.Clone(g.forgetting), Refresh: true}
}

// add appends a resource of a random kind.
func (g *Generator) add() {
	all := kinds()
	k := pick(g, all...)
	for provider(k.typ) == "demo5" && !g.UseDemo5 {
		k = pick(g, all...)
	}
	g.addKind(k)
}

func (g *Generator) addKind(k kind) *Resource {
	r := &Resource{Address: Address{Type: k.typ, Name: g.newName("r")}}
	before := g.current.Resources
	arguments, possible := g.arguments(r.Address, before)
	if !possible { // it requires a network
		g.addKind(kindOf(provider(k.typ) + "_network"))
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
		r.Lifecycle.IgnoreChanges = []string{pick(g, ignorable(r)...)}
	}
	managed := managedOf(before)
	if g.chance(8) && len(managed) > 0 {
		of := pick(g, managed...)
		ref := Ref{Target: of.Address}
		if g.chance(50) {
			ref.Attribute = pick(g, kindOf(of.Type).texts...)
		}
		r.Lifecycle.ReplaceTriggeredBy = []Ref{ref}
	}
	r.DependsOn = nil
	if g.chance(10) && len(managed) > 0 {
		r.DependsOn = []Address{pick(g, managed...).Address}
	}
}

// ignorable returns the arguments of a resource that ignore_changes may list.
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

// addData appends a data source that looks up a resource, to every third configuration.
func (g *Generator) addData() {
	found := managedOf(g.current.Resources)
	found = slices.DeleteFunc(found, func(r *Resource) bool { return provider(r.Type) != "demo" })
	if !g.chance(33) || len(found) == 0 {
		return
	}
	of := pick(g, found...)
	r := &Resource{Address: Address{Type: "demo_lookup", Name: g.newName("d"), Data: true}, Arguments: map[string]any{
		"type": of.Type, "name": Ref{of.Address, "name"},
	}}
	if g.chance(60) {
		r.Arguments["after"] = Ref{of.Address, "id"}
	} else {
		r.DependsOn = []Address{of.Address}
	}
	g.current.Resources = append(g.current.Resources, r)
	user := &Resource{Address: Address{Type: "demo_cross", Name: g.newName("r")}, Arguments: map[string]any{
		"name": g.newName("n"), "references": []any{Ref{r.Address, "id"}},
	}}
	g.current.Resources = append(g.current.Resources, user)
}
