package alike

import (
	"maps"
	"slices"
)

// Left is what is there after a step.
type Left struct {
	// Refused says that nothing could be planned, so that nothing was done.
	Refused bool
	// There are addresses in the state.
	There map[Address]bool
}

// Next is another step.
func (g *Generator) Next(left Left) *Step {
	for _, r := range g.current.Resources {
		r.ImportID = "" // it was to be imported once
	}
	g.forgetting = slices.DeleteFunc(g.forgetting, func(a Address) bool { return !left.There[a] })
	if left.Refused {
		return g.repair()
	}
	what := ""
	s := &Step{Refresh: g.chance(80)}
	for range 1 + g.IntN(3) {
		what += g.mutate(s, left) + ", "
	}
	g.flags(s, left)
	s.What, s.Configuration, s.Forget = what[:len(what)-2], g.current.clone(), slices.Clone(g.forgetting)
	return s
}

// Last destroys everything.
func (g *Generator) Last() *Step {
	for _, r := range g.current.Resources {
		r.Lifecycle.PreventDestroy = false
	}
	s := g.step("destroyed")
	s.Destroy = true
	return s
}

// repair takes away what may have kept the step before from being planned.
func (g *Generator) repair() *Step {
	for _, r := range slices.Clone(g.current.Resources) {
		r.Lifecycle.PreventDestroy = false
		if r.Data {
			g.remove(r)
		}
	}
	return g.step("repaired")
}

// mutate changes one thing, and says what.
func (g *Generator) mutate(s *Step, left Left) string {
	all := managedOf(g.current.Resources)
	if len(all) == 0 {
		g.add()
		return "one more"
	}
	r := one(g, all...)
	switch n := g.IntN(100); {
	case n < 34:
		return g.argument(r)
	case n < 44:
		g.add()
		return "one more"
	case n < 54:
		if r.Lifecycle.PreventDestroy {
			r.Lifecycle.PreventDestroy = false
			return r.String() + " may be destroyed"
		}
		g.remove(r)
		return r.String() + " removed"
	case n < 66:
		return g.retarget(r)
	case n < 72:
		r.Arguments["name"] = g.fresh("n")
		return r.String() + " renamed"
	case n < 78:
		g.lifecycle(r, g.before(r))
		return r.String() + " another lifecycle"
	case n < 84:
		return g.moved(r, left)
	case n < 94:
		return g.drift(s, r)
	}
	arguments, possible := g.arguments(r.Address, g.before(r))
	if !possible {
		return "nothing"
	}
	arguments["name"] = r.Arguments["name"]
	r.Arguments = arguments
	return r.String() + " all other arguments"
}

func (g *Generator) before(r *Resource) []*Resource {
	return g.current.Resources[:slices.Index(g.current.Resources, r)]
}

// argument has one argument as another one of its kind could have it.
func (g *Generator) argument(r *Resource) string {
	fresh, possible := g.arguments(r.Address, g.before(r))
	if !possible {
		return "nothing"
	}
	names := map[string]bool{}
	for name := range fresh {
		names[name] = true
	}
	for name := range r.Arguments {
		names[name] = true
	}
	delete(names, "name")
	if len(names) == 0 {
		return "nothing"
	}
	name := one(g, slices.Sorted(maps.Keys(names))...)
	if v, there := fresh[name]; there {
		r.Arguments[name] = v
	} else {
		delete(r.Arguments, name)
	}
	if name == "password_wo" || name == "password_wo_version" { // each needs the other
		for _, both := range []string{"password_wo", "password_wo_version"} {
			delete(r.Arguments, both)
			if v, there := fresh[both]; there {
				r.Arguments[both] = v
			}
		}
	}
	return r.String() + "." + name
}

// remove takes one away. What needs it goes with it or comes to refer to others.
func (g *Generator) remove(r *Resource) {
	at := slices.Index(g.current.Resources, r)
	if at < 0 {
		return
	}
	g.current.Resources = slices.Delete(g.current.Resources, at, at+1)
	for _, user := range slices.Clone(g.current.Resources[at:]) {
		// One may have gone with another already.
		if slices.Contains(g.current.Resources, user) && slices.Contains(user.uses(), r.Address) {
			g.withdraw(user, r.Address)
		}
	}
}

// withdraw has a resource refer to something no more.
func (g *Generator) withdraw(user *Resource, from Address) {
	user.DependsOn = slices.DeleteFunc(user.DependsOn, func(a Address) bool { return a == from })
	user.Lifecycle.ReplaceTriggeredBy = slices.DeleteFunc(user.Lifecycle.ReplaceTriggeredBy, func(ref Ref) bool { return ref.Of == from })
	if !slices.Contains(user.uses(), from) {
		return
	}
	arguments, possible := g.arguments(user.Address, g.before(user))
	if !possible || user.Data || g.chance(25) {
		user.Lifecycle.PreventDestroy = false
		g.remove(user)
		return
	}
	arguments["name"] = user.Arguments["name"]
	user.Arguments = arguments
}

// retarget has arguments that refer to others refer to different ones.
func (g *Generator) retarget(r *Resource) string {
	var refer []string
	for _, name := range slices.Sorted(maps.Keys(r.Arguments)) {
		found := false
		eachRef(r.Arguments[name], func(Ref) { found = true })
		if found {
			refer = append(refer, name)
		}
	}
	if len(refer) == 0 {
		return "nothing"
	}
	name := one(g, refer...)
	for range 5 {
		fresh, possible := g.arguments(r.Address, g.before(r))
		if v, there := fresh[name]; possible && there {
			r.Arguments[name] = v
			break
		}
	}
	return r.String() + "." + name + " refers elsewhere"
}

// moved forgets a resource and imports it under another address.
func (g *Generator) moved(r *Resource, left Left) string {
	if !left.There[r.Address] || provider(r.Type) != "demo" || r.Type == "demo_flaky" {
		return "nothing"
	}
	g.forgetting = append(g.forgetting, r.Address)
	arguments := cloneValue(r.Arguments).(map[string]any)
	name := r.Name
	r.Lifecycle.PreventDestroy = false
	g.remove(r)
	if g.chance(30) {
		return r.String() + " forgotten"
	}
	again := &Resource{Address: Address{Type: r.Type, Name: g.fresh("r")}, Arguments: arguments, ImportID: r.String()}
	for _, used := range again.uses() {
		if g.current.find(used) == nil {
			return r.String() + " forgotten"
		}
	}
	g.current.Resources = append(g.current.Resources, again)
	if g.chance(30) {
		g.argument(again)
	}
	return again.Type + " " + name + " imported as " + again.Name
}

// drift has somebody else change a resource.
func (g *Generator) drift(s *Step, r *Resource) string {
	d := Drift{Of: r.Address, Remove: g.chance(30)}
	switch r.Type {
	case "demo_network":
		d.Attribute, d.Text = "zone", g.plainWord()
	case "demo_server":
		d.Attribute, d.Text = "size", g.plainWord()
	case "demo_slow", "demo_private", "demo_identity", "demo_cross", "demo_flaky":
		d.Attribute, d.Text = "value", g.plainWord()
	case "demo_collection":
		d.Attribute, d.Text = "text", g.plainWord()
	case "demo_unknown":
		d.Attribute, d.Text = "seed", g.plainWord()
	case "demo5_server":
		d.Attribute, d.Text = "size", g.plainWord()
	default:
		d.Remove = true
	}
	s.Drift = append(s.Drift, d)
	s.Refresh = true
	if d.Remove {
		return r.String() + " removed by somebody"
	}
	return r.String() + "." + d.Attribute + " changed by somebody"
}

// flags narrow a step, or have it do something else, in few cases.
func (g *Generator) flags(s *Step, left Left) {
	managed := managedOf(g.current.Resources)
	if len(managed) == 0 {
		return
	}
	r := one(g, managed...).Address
	switch n := g.IntN(100); {
	case n < 8 && left.There[r]:
		s.Replace = []Address{r}
	case n < 13 && len(g.forgetting) == 0:
		s.Targets = []Address{r}
	case n < 18 && len(g.forgetting) == 0:
		s.Exclude = []Address{r}
	case n < 22:
		s.RefreshOnly, s.Refresh = true, true
	}
}
