package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Negotiate finds the type that all clusters accept: the first seeds it, each
// further one narrows it, as Intersect does. A type that would leave nothing,
// or of which that cannot be decided, is left out, and refused[i] says why;
// it is empty for those that went in. The result accepts nothing that any of
// these refuses, which is checked once more at the end.
//
// The order decides only whose defaults, descriptions and names are kept, and
// who is left out of two that do not meet: the later one.
func Negotiate(types []Type) (result Type, refused [][]Refusal) {
	refused = make([][]Refusal, len(types))
	for again := true; again; {
		result, again = negotiate(types, refused)
	}
	return result, refused
}

// negotiate tells whether it left a type out only after others had built on
// it, so that there has to be another round without it.
func negotiate(types []Type, refused [][]Refusal) (result Type, again bool) {
	seeded := false
	for i, t := range types {
		switch {
		case len(refused[i]) > 0:
		case !seeded:
			// A type that cannot even be compared with itself seeds nothing.
			if result, refused[i] = Intersect(t, t, true); len(refused[i]) == 0 {
				seeded = true
			}
		default:
			next, why := Intersect(result, t, true)
			if refused[i] = why; len(why) == 0 {
				result = next
			}
		}
	}
	for i, t := range types {
		if len(refused[i]) == 0 {
			if _, refused[i] = Intersect(result, t, false); len(refused[i]) > 0 {
				again = true
			}
		}
	}
	return result, again
}

// Intersect compares two types as Compare does their schemas. Without narrow
// existing stands (a CRD that a person made, say) and the question is whether
// a cluster that serves next accepts all that existing does.
//
// A status with an endpoint of its own flows the other way: clusters report
// it and nothing is sent. So it is not narrowed but widened, to what any of
// them may report.
func Intersect(existing, next Type, narrow bool) (Type, []Refusal) {
	if refusals := named(existing, next); len(refusals) > 0 {
		return Type{}, refusals
	}
	result := existing
	result.ShortNames = inBoth(existing.ShortNames, next.ShortNames)
	result.Categories = inBoth(existing.Categories, next.Categories)
	if !narrow {
		result = existing
	}
	if existing.Status != next.Status {
		return Type{}, []Refusal{{Path: "subresources.status", Reason: SubresourceDiffers,
			Message: "has .status behind an endpoint of its own in only one of the two, so a write means different things"}}
	}
	for _, t := range []Type{existing, next} {
		if len(t.Loose) > 0 {
			return Type{}, []Refusal{{Path: t.Loose[0], Reason: NotExpressible,
				Message: "is checked by the cluster in a way that no CRD can say (a schema that contains itself, or combined types)"}}
		}
	}
	if existing.Schema == nil || next.Schema == nil {
		return Type{}, []Refusal{{Path: ".", Reason: SchemaMissing, Message: "has no schema in one of the two, so nothing is known of what it accepts"}}
	}
	if why := scale(&result, existing, next, narrow); why != nil {
		return Type{}, []Refusal{*why}
	}
	schema, refusals := compareSent(existing, next, narrow)
	if len(refusals) > 0 {
		return Type{}, refusals
	}
	result.Schema = schema
	if narrow && result.Status && !rootTakes(schema) {
		return Type{}, []Refusal{{Path: ".", Reason: NotExpressible,
			Message: "would need combinations or counts of properties at the root, which a CRD with a status may not have"}}
	}
	return result, nil
}

func named(existing, next Type) []Refusal {
	var refusals []Refusal
	differ := func(path string, reason Reason, a, b string) {
		if a != b {
			refusals = append(refusals, Refusal{Path: path, Reason: reason, Message: fmt.Sprintf("is %q in one and %q in the other", a, b)})
		}
	}
	differ("group", NamesDiffer, existing.Group, next.Group)
	differ("version", NamesDiffer, existing.Version, next.Version)
	differ("kind", NamesDiffer, existing.Kind, next.Kind)
	differ("plural", NamesDiffer, existing.Plural, next.Plural)
	differ("scope", ScopeDiffers, string(existing.Scope), string(next.Scope))
	return refusals
}

func inBoth(a, b []string) []string {
	var both []string
	for _, w := range a {
		if slices.Contains(b, w) {
			both = append(both, w)
		}
	}
	return both
}

// scale: where there is a /scale, API servers also hold the replicas behind it
// to be an integer that is not negative. So it stays if either has it.
func scale(result *Type, existing, next Type, narrow bool) *Refusal {
	refuse := func(message string) *Refusal {
		return &Refusal{Path: "subresources.scale", Reason: SubresourceDiffers, Message: message}
	}
	switch {
	case next.Scale == nil:
		return nil
	case existing.Scale == nil && !narrow:
		return refuse("is served by the other, which therefore refuses replicas that are negative or no integers")
	case existing.Scale == nil:
		result.Scale = next.Scale.DeepCopy()
		return nil
	}
	label := func(path *string) string {
		if path == nil {
			return ""
		}
		return *path
	}
	a, b := existing.Scale, next.Scale
	if a.SpecReplicasPath != b.SpecReplicasPath || a.StatusReplicasPath != b.StatusReplicasPath || label(a.LabelSelectorPath) != label(b.LabelSelectorPath) {
		return refuse("reads other fields in one than in the other")
	}
	return nil
}

// compareSent compares what is sent to clusters, and widens what they report.
func compareSent(existing, next Type, narrow bool) (*Props, []Refusal) {
	if !existing.Status {
		return Compare(existing.Schema, next.Schema, narrow)
	}
	a, statusA := withoutStatus(existing.Schema)
	b, statusB := withoutStatus(next.Schema)
	for _, side := range []struct {
		root   *Props
		status **Props
	}{{a, &statusA}, {b, &statusB}} {
		if *side.status == nil && preserves(side.root) {
			*side.status = anyProps()
		}
	}
	schema, refusals := Compare(a, b, narrow)
	if len(refusals) > 0 {
		return nil, refusals
	}
	if !narrow {
		return existing.Schema.DeepCopy(), nil
	}
	if statusA == nil && statusB == nil {
		return schema, nil
	}
	status := widen(statusA, statusB)
	for _, rule := range schema.XValidations {
		h := readingOf(rule)
		for _, source := range []*Props{statusA, statusB} {
			if (h.whole || h.mentions("status")) && (source == nil || !sameShape(h, source, status)) {
				return nil, []Refusal{{Path: ".status", Reason: RuleDiffers,
					Message: "is not the same in both, and a rule may read it: " + brief(rule.Rule)}}
			}
		}
	}
	if schema.Properties == nil {
		schema.Properties = map[string]Props{}
	}
	schema.Properties["status"] = *status
	return schema, nil
}

// withoutStatus takes .status out. A required one is taken out too: the
// status is dropped from what is created, so an API server that asked for it
// would refuse every object, and nobody could have made one.
func withoutStatus(p *Props) (*Props, *Props) {
	out := p.DeepCopy()
	out.Required = slices.DeleteFunc(out.Required, func(name string) bool { return name == "status" })
	status, ok := out.Properties["status"]
	if !ok {
		return out, nil
	}
	delete(out.Properties, "status")
	return out, &status
}

// rootTakes tells whether an API server takes p as the root of a CRD that has
// a status endpoint.
func rootTakes(p *Props) bool {
	return len(p.AllOf) == 0 && len(p.AnyOf) == 0 && len(p.OneOf) == 0 && p.Not == nil && p.MinProperties == nil &&
		p.MaxProperties == nil && len(p.Enum) == 0 && p.Default == nil && p.XMapType == nil
}

// String names a type as people do: widgets.v1.example.com.
func (t Type) String() string {
	return strings.TrimSuffix(strings.Join([]string{t.Plural, t.Version, t.Group}, "."), ".")
}
