package differential

import (
	"cmp"
	"fmt"
	"slices"
)

// Address names a resource, or a data source, of a configuration.
type Address struct {
	Type, Name string
	Data       bool
}

// String returns the address in OpenTofu's notation.
func (a Address) String() string {
	text := a.Type + "." + a.Name
	if a.Data {
		return "data." + text
	}
	return text
}

func (a Address) compare(b Address) int { return cmp.Compare(a.String(), b.String()) }

// Configuration is a generated configuration: the desired resources.
type Configuration struct {
	// Resources are ordered: each refers only to earlier ones.
	Resources []*Resource
}

// Resource is a resource or a data source.
type Resource struct {
	Address
	// Arguments map names to values of these types: nil, bool, int, string, BigNumber, Ref, Text, Secret, []any, map[string]any.
	Arguments map[string]any
	DependsOn []Address
	Lifecycle Lifecycle
	// ImportID is the address whose object this resource imports; empty for none.
	ImportID string
}

// Lifecycle holds the lifecycle settings that OpenTofu and Atoll share.
type Lifecycle struct {
	PreventDestroy, CreateBeforeDestroy bool
	IgnoreChanges                       []string
	ReplaceTriggeredBy                  []Ref
}

// Ref refers to an attribute of another resource, or to the whole resource if Attribute is empty.
type Ref struct {
	Target    Address
	Attribute string
}

// Text is a template: strings and Refs that are concatenated.
type Text []any

// Secret is a sensitive value of any type. OpenTofu gets it as a literal, Atoll as a reference to a Secret.
type Secret struct{ Value any }

// BigNumber is a number with more digits than a float64 holds.
type BigNumber string

func (c *Configuration) find(a Address) *Resource {
	for _, r := range c.Resources {
		if r.Address == a {
			return r
		}
	}
	return nil
}

// clone returns a copy of everything that steps change.
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
	return v // no step changes values of other types
}

// dependencies returns the addresses that a resource refers to, sorted and without duplicates.
func (r *Resource) dependencies() []Address {
	seen := map[Address]bool{}
	eachRef(r.Arguments, func(ref Ref) { seen[ref.Target] = true })
	for _, ref := range r.Lifecycle.ReplaceTriggeredBy {
		seen[ref.Target] = true
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

// validate returns an error if the configuration is invalid, which is a bug in the generator.
func (c *Configuration) validate() error {
	before := map[Address]bool{}
	for _, r := range c.Resources {
		for _, used := range r.dependencies() {
			if !before[used] {
				return fmt.Errorf("%s refers to %s, which does not come before it", r.Address, used)
			}
		}
		if before[r.Address] {
			return fmt.Errorf("%s is declared twice", r.Address)
		}
		before[r.Address] = true
	}
	return nil
}

// Step is one change of the configuration or of the providers' objects, and the options of its plan.
type Step struct {
	// Description says in words what changes.
	Description string
	// Configuration is the desired configuration from this step on.
	Configuration *Configuration
	// Forget lists resources to remove from the state without destroying them.
	Forget []Address
	// Drift changes the objects of both sides before they plan.
	Drift []Drift
	// Refresh reads the objects from the providers first. Destroy and RefreshOnly are planning modes.
	Refresh, Destroy, RefreshOnly bool
	// Replace forces replacements. Targets and Exclude limit the plan.
	Replace, Targets, Exclude []Address
}

// String returns the description and all options.
func (s *Step) String() string {
	text := s.Description
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

// Drift is a change of an object outside OpenTofu and Atoll: it sets a text attribute, or removes the object.
type Drift struct {
	Target    Address
	Remove    bool
	Attribute string
	Text      string
}
