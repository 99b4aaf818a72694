package differential

import (
	"maps"
	"slices"
)

// StepResult is the part of a step's result that the generator needs for the next step.
type StepResult struct {
	// Refused is set if planning failed, so that nothing was applied.
	Refused bool
	// InState are the addresses in the state.
	InState map[Address]bool
}

// Next returns the next step, given the result of the last one.
func (g *Generator) Next(last StepResult) *Step {
	for _, r := range g.current.Resources {
		r.ImportID = "" // a resource is imported by one step only
	}
	g.forgetting = slices.DeleteFunc(g.forgetting, func(a Address) bool { return !last.InState[a] })
	if last.Refused {
		return g.repair()
	}
	what := ""
	s := &Step{Refresh: g.chance(80)}
	for range 1 + g.IntN(3) {
		what += g.mutate(s, last) + ", "
	}
	g.setFlags(s, last)
	s.Description, s.Configuration, s.Forget = what[:len(what)-2], g.current.clone(), slices.Clone(g.forgetting)
	return s
}

// Last returns a step that destroys everything.
func (g *Generator) Last() *Step {
	for _, r := range g.current.Resources {
		r.Lifecycle.PreventDestroy = false
	}
	s := g.step("destroy")
	s.Destroy = true
	return s
}

// repair returns a step without the settings and data sources that may have made the last plan fail.
func (g *Generator) repair() *Step {
	for _, r := range slices.Clone(g.current.Resources) {
		r.Lifecycle.PreventDestroy = false
		if r.Data {
			g.remove(r)
		}
	}
	return g.step("repair")
}

// mutate makes one random change and returns its description.
func (g *Generator) mutate(s *Step, last StepResult) string {
	all := managedOf(g.current.Resources)
	if len(all) == 0 {
		g.add()
		return "one resource added"
	}
	r := pick(g, all...)
	switch n := g.IntN(100); {
	case n < 34:
		return g.changeArgument(r)
	case n < 44:
		g.add()
		return "one resource added"
	case n < 54:
		if r.Lifecycle.PreventDestroy {
			r.Lifecycle.PreventDestroy = false
			return r.String() + " without prevent_destroy"
		}
		g.remove(r)
		return r.String() + " removed"
	case n < 66:
		return g.changeReference(r)
	case n < 72:
		r.Arguments["name"] = g.newName("n")
		return r.String() + " renamed"
	case n < 78:
		g.lifecycle(r, g.before(r))
		return r.String() + " with another lifecycle"
	case n < 84:
		return g.move(r, last)
	case n < 94:
		return g.drift(s, r)
	}
	arguments, possible := g.arguments(r.Address, g.before(r))
	if !possible {
		return "no change"
	}
	arguments["name"] = r.Arguments["name"]
	r.Arguments = arguments
	return r.String() + " with other arguments throughout"
}

func (g *Generator) before(r *Resource) []*Resource {
	return g.current.Resources[:slices.Index(g.current.Resources, r)]
}

// changeArgument generates a new value for one argument, or removes it.
func (g *Generator) changeArgument(r *Resource) string {
	fresh, possible := g.arguments(r.Address, g.before(r))
	if !possible {
		return "no change"
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
		return "no change"
	}
	name := pick(g, slices.Sorted(maps.Keys(names))...)
	if v, there := fresh[name]; there {
		r.Arguments[name] = v
	} else {
		delete(r.Arguments, name)
	}
	if name == "password_wo" || name == "password_wo_version" { // each requires the other
		for _, argument := range []string{"password_wo", "password_wo_version"} {
			delete(r.Arguments, argument)
			if v, there := fresh[argument]; there {
				r.Arguments[argument] = v
			}
		}
	}
	return r.String() + "." + name
}

// remove removes a resource. Resources that refer to it are removed too, or get other arguments.
func (g *Generator) remove(r *Resource) {
	at := slices.Index(g.current.Resources, r)
	if at < 0 {
		return
	}
	g.current.Resources = slices.Delete(g.current.Resources, at, at+1)
	for _, user := range slices.Clone(g.current.Resources[at:]) {
		// An earlier iteration may have removed this one.
		if slices.Contains(g.current.Resources, user) && slices.Contains(user.dependencies(), r.Address) {
			g.dropReference(user, r.Address)
		}
	}
}

// dropReference removes a resource's references to an address.
func (g *Generator) dropReference(user *Resource, from Address) {
	user.DependsOn = slices.DeleteFunc(user.DependsOn, func(a Address) bool { return a == from })
	user.Lifecycle.ReplaceTriggeredBy = slices.DeleteFunc(user.Lifecycle.ReplaceTriggeredBy, func(ref Ref) bool { return ref.Target == from })
	if !slices.Contains(user.dependencies(), from) {
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

// changeReference generates a new value for an argument that contains a reference.
func (g *Generator) changeReference(r *Resource) string {
	var refer []string
	for _, name := range slices.Sorted(maps.Keys(r.Arguments)) {
		found := false
		eachRef(r.Arguments[name], func(Ref) { found = true })
		if found {
			refer = append(refer, name)
		}
	}
	if len(refer) == 0 {
		return "no change"
	}
	name := pick(g, refer...)
	for range 5 {
		fresh, possible := g.arguments(r.Address, g.before(r))
		if v, there := fresh[name]; possible && there {
			r.Arguments[name] = v
			break
		}
	}
	return r.String() + "." + name + " refers elsewhere"
}

// move forgets a resource and usually imports it under another address.
func (g *Generator) move(r *Resource, last StepResult) string {
	if !last.InState[r.Address] || provider(r.Type) != "demo" || r.Type == "demo_flaky" {
		return "no change"
	}
	g.forgetting = append(g.forgetting, r.Address)
	arguments := cloneValue(r.Arguments).(map[string]any)
	name := r.Name
	r.Lifecycle.PreventDestroy = false
	g.remove(r)
	if g.chance(30) {
		return r.String() + " forgotten"
	}
	again := &Resource{Address: Address{Type: r.Type, Name: g.newName("r")}, Arguments: arguments, ImportID: r.String()}
	for _, used := range again.dependencies() {
		if g.current.find(used) == nil {
			return r.String() + " forgotten"
		}
	}
	g.current.Resources = append(g.current.Resources, again)
	if g.chance(30) {
		g.changeArgument(again)
	}
	return again.Type + " " + name + " imported as " + again.Name
}

// drift adds a change of a resource outside OpenTofu and Atoll to the step.
func (g *Generator) drift(s *Step, r *Resource) string {
	d := Drift{Target: r.Address, Remove: g.chance(30)}
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
		return r.String() + " removed outside"
	}
	return r.String() + "." + d.Attribute + " changed outside"
}

// setFlags sets -replace, -target, -exclude or -refresh-only in some of the steps.
func (g *Generator) setFlags(s *Step, last StepResult) {
	managed := managedOf(g.current.Resources)
	if len(managed) == 0 {
		return
	}
	r := pick(g, managed...).Address
	switch n := g.IntN(100); {
	case n < 8 && last.InState[r]:
		s.Replace = []Address{r}
	case n < 13 && len(g.forgetting) == 0:
		s.Targets = []Address{r}
	case n < 18 && len(g.forgetting) == 0:
		s.Exclude = []Address{r}
	case n < 22:
		s.RefreshOnly, s.Refresh = true, true
	}
}
