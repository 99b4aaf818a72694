package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Negotiate finds the type that all clusters accept. The first type is the seed, and each further
// one narrows it with Intersect. A type is left out if the result would accept nothing, or if that
// cannot be decided. refused[i] then has the reasons; it is empty for included types. The result
// accepts nothing that an included type rejects, which is checked once more at the end.
//
// The order determines only whose defaults, descriptions and names are kept, and which of two
// incompatible types is left out: the later one.
func Negotiate(types []Type) (result Type, refused [][]Refusal) {
	refused = make([][]Refusal, len(types))
	for again := true; again; {
		result, again = negotiate(types, refused)
	}
	return result, refused
}

// negotiate reports whether it refused a type only after other types had been narrowed by it, which
// requires another round without it.
func negotiate(types []Type, refused [][]Refusal) (result Type, again bool) {
	seeded := false
	for i, t := range types {
		switch {
		case len(refused[i]) > 0:
		case !seeded:
			// A type that cannot be compared with itself cannot be the seed.
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

// Intersect compares two types as Compare does with their schemas. Without narrow, existing is
// fixed (for example a user's CRD), and the question is whether a cluster that serves next accepts
// everything that existing accepts.
//
// A status subresource flows in the other direction: clusters report it, and nothing is sent. So it
// is not narrowed but widened, to everything that any cluster may report.
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
			Message: "has a status subresource in only one of the two types, so a write has different effects"}}
	}
	for _, t := range []Type{existing, next} {
		if len(t.Loose) > 0 {
			return Type{}, []Refusal{{Path: t.Loose[0], Reason: NotExpressible,
				Message: "is checked by the cluster in a way that no CRD can express (a recursive schema, or combined types)"}}
		}
	}
	if existing.Schema == nil || next.Schema == nil {
		return Type{}, []Refusal{{Path: ".", Reason: SchemaMissing, Message: "has no schema in one of the two types, so its accepted values are unknown"}}
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
			Message: "would require combinations or property counts at the root, which a CRD with a status subresource must not have"}}
	}
	return result, nil
}

func named(existing, next Type) []Refusal {
	var refusals []Refusal
	differ := func(path string, reason Reason, a, b string) {
		if a != b {
			refusals = append(refusals, Refusal{Path: path, Reason: reason, Message: fmt.Sprintf("is %q in one type and %q in the other", a, b)})
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

// scale: with a scale subresource, API servers also require the replicas to be an integer that is
// not negative. So the result has it if either type has it.
func scale(result *Type, existing, next Type, narrow bool) *Refusal {
	refuse := func(message string) *Refusal {
		return &Refusal{Path: "subresources.scale", Reason: SubresourceDiffers, Message: message}
	}
	switch {
	case next.Scale == nil:
		return nil
	case existing.Scale == nil && !narrow:
		return refuse("is served by the other type, which therefore rejects replicas that are negative or not integers")
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
		return refuse("uses different fields in the two types")
	}
	return nil
}

// compareSent compares the part that clusters are sent, and widens the part that they report.
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
					Message: "differs in the two types, and a rule may read it: " + brief(rule.Rule)}}
			}
		}
	}
	if schema.Properties == nil {
		schema.Properties = map[string]Props{}
	}
	schema.Properties["status"] = *status
	return schema, nil
}

// withoutStatus removes .status, even if it is required. The status is dropped when an object is
// created, so an API server that required it would reject every object.
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

// rootTakes reports whether an API server accepts p as the root of a CRD with a status subresource.
func rootTakes(p *Props) bool {
	return len(p.AllOf) == 0 && len(p.AnyOf) == 0 && len(p.OneOf) == 0 && p.Not == nil && p.MinProperties == nil &&
		p.MaxProperties == nil && len(p.Enum) == 0 && p.Default == nil && p.XMapType == nil
}

// String returns the usual name of a type: widgets.v1.example.com.
func (t Type) String() string {
	return strings.TrimSuffix(strings.Join([]string{t.Plural, t.Version, t.Group}, "."), ".")
}
