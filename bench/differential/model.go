package alike

import (
	"cmp"
	"fmt"
	"slices"
)

// Address is a resource, or a data source, of a configuration.
type Address struct {
	Type, Name string
	Data       bool
}

// String is as OpenTofu writes it.
func (a Address) String() string {
	text := a.Type + "." + a.Name
	if a.Data {
		return "data." + text
	}
	return text
}

func (a Address) compare(b Address) int { return cmp.Compare(a.String(), b.String()) }

// Configuration is what is written.
type Configuration struct {
	// Resources refer to those before them only.
	Resources []*Resource
}

// Resource is one, or a data source.
type Resource struct {
	Address
	// Arguments are values: nil, bool, int, string, Big, Ref, Text, Secret, []any, map[string]any.
	Arguments map[string]any
	DependsOn []Address
	Lifecycle Lifecycle
	// ImportID is of what it takes over.
	ImportID string
}

// Lifecycle is as both call it.
type Lifecycle struct {
	PreventDestroy, CreateBeforeDestroy bool
	IgnoreChanges                       []string
	ReplaceTriggeredBy                  []Ref
}

// Ref is an attribute of another one, or all of it if there is no attribute.
type Ref struct {
	Of        Address
	Attribute string
}

// Text is strings and Refs, one after another.
type Text []any

// Secret is a string, or something of another type, that is secret: a literal to OpenTofu, a Secret to Atoll.
type Secret struct{ Value any }

// Big is a number with more digits than a float has.
type Big string

func (c *Configuration) find(a Address) *Resource {
	for _, r := range c.Resources {
		if r.Address == a {
			return r
		}
	}
	return nil
}

// clone copies all that steps change.
func (c *Configuration) clone() *Configuration {
	out := &Configuration{}
	for _, r := range c.Resources {
		copied := *r
		copied.Arguments = cloneValue(r.Arguments).(map[string]any)
		copied.DependsOn = slices.Clone(r.DependsOn)
		copied.Lifecycle.IgnoreChanges = slices.Clone(r.Lifecycle.IgnoreChanges)
		copied.Lifecycle.ReplaceTriggeredBy = slices.Clone(r.Lifecycle.ReplaceTriggeredBy)
		out.Resources = append(out.Resources, &copied)
	}
	return out
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name := range v {
			out[name] = cloneValue(v[name])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = cloneValue(v[i])
		}
		return out
	}
	return v // nobody changes the others
}

// uses are the addresses that a resource refers to, each once, sorted.
func (r *Resource) uses() []Address {
	seen := map[Address]bool{}
	eachRef(r.Arguments, func(ref Ref) { seen[ref.Of] = true })
	for _, ref := range r.Lifecycle.ReplaceTriggeredBy {
		seen[ref.Of] = true
	}
	for _, a := range r.DependsOn {
		seen[a] = true
	}
	var out []Address
	for a := range seen {
		out = append(out, a)
	}
	slices.SortFunc(out, Address.compare)
	return out
}

func eachRef(v any, visit func(Ref)) {
	switch v := v.(type) {
	case Ref:
		visit(v)
	case Text:
		for _, part := range v {
			eachRef(part, visit)
		}
	case Secret:
		eachRef(v.Value, visit)
	case []any:
		for _, one := range v {
			eachRef(one, visit)
		}
	case map[string]any:
		for _, one := range v {
			eachRef(one, visit)
		}
	}
}

// check tells of a configuration that is not one: a mistake of who made it.
func (c *Configuration) check() error {
	before := map[Address]bool{}
	for _, r := range c.Resources {
		for _, used := range r.uses() {
			if !before[used] {
				return fmt.Errorf("%s refers to %s, which is not before it", r.Address, used)
			}
		}
		if before[r.Address] {
			return fmt.Errorf("%s is there twice", r.Address)
		}
		before[r.Address] = true
	}
	return nil
}

// Step is one change of what is written, or of the world, and how it is planned.
type Step struct {
	// What is for people.
	What string
	// Configuration from now on.
	Configuration *Configuration
	// Forget is what is to be left alone though it is no longer written.
	Forget []Address
	// Drift is done to both worlds beforehand.
	Drift []Drift
	// Refresh asks the providers first; Destroy and RefreshOnly are modes.
	Refresh, Destroy, RefreshOnly bool
	// Replace asks for new ones, Targets and Exclude narrow it.
	Replace, Targets, Exclude []Address
}

// String says it all.
func (s *Step) String() string {
	text := s.What
	switch {
	case s.RefreshOnly:
		text += " (refresh only)"
	case s.Destroy:
		text += " (destroy)"
	case !s.Refresh:
		text += " (not refreshed)"
	}
	for _, list := range []struct {
		word string
		of   []Address
	}{{"replace", s.Replace}, {"target", s.Targets}, {"exclude", s.Exclude}, {"forget", s.Forget}} {
		for _, a := range list.of {
			text += fmt.Sprintf(" (%s %s)", list.word, a)
		}
	}
	return text
}

// Drift is what somebody else does to an object: changes an attribute that is text, or removes it.
type Drift struct {
	Of        Address
	Remove    bool
	Attribute string
	Text      string
}
