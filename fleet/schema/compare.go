package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Compare decides whether next accepts, and keeps whole, everything that existing accepts. If so,
// the result is existing. With narrow, it instead returns a schema that accepts only what both
// accept, with existing's defaults and descriptions where the two agree. A refusal means no, or
// that the question cannot be decided. Then there is no result.
//
// Objects are considered as the control plane stores them, because that is what clusters are sent:
// pruned and defaulted by the result.
func Compare(existing, next *Props, narrow bool) (*Props, []Refusal) {
	c := &comparison{narrow: narrow}
	if existing == nil || next == nil {
		c.refuse(location{}, SchemaMissing, "has no schema; ask the cluster's administrator for a CRD with a schema")
		return nil, c.refusals
	}
	c.supported(location{}, existing, true)
	c.supported(location{}, next, true)
	if len(c.refusals) > 0 {
		return nil, c.sortedRefusals()
	}
	result := c.intersect(location{root: true}, existing, next)
	if len(c.refusals) > 0 {
		return nil, c.sortedRefusals()
	}
	if !narrow {
		return existing.DeepCopy(), nil
	}
	// Narrowing and checking containment use different rules. So each result is checked against
	// both of its sources before it is returned.
	for _, source := range []*Props{existing, next} {
		check := &comparison{}
		check.intersect(location{root: true}, result, source)
		if len(check.refusals) > 0 {
			return nil, check.sortedRefusals()
		}
	}
	return result, nil
}

// A comparison collects refusals. It continues after the first one, so that all are reported.
type comparison struct {
	narrow   bool
	refusals []Refusal
}

// A location is a position in the two schemas.
type location struct {
	path string
	// root: the whole object, whose metadata is implicit.
	root bool
	// unpruned: inside the metadata of an object. Nothing is pruned there, so a field without a
	// schema is accepted.
	unpruned bool
	// values: below the values of a map, where the API server does not check defaults.
	values bool
	// defined are the recursive schemas by name, for UnknownPaths.
	defined map[string]Props
	// above are the ancestors of this location, outermost first.
	above []ancestor
}

// An ancestor is a pair of schemas, and the field below them.
type ancestor struct {
	existing, next *Props
	field          string
}

func (p location) String() string {
	if p.path == "" {
		return "."
	}
	return p.path
}

func (p location) down(existing, next *Props, field, path string) location {
	return location{
		path: p.path + path, unpruned: p.unpruned, values: p.values,
		above: append(slices.Clip(p.above), ancestor{existing, next, field}),
	}
}

func (c *comparison) refuse(at location, reason Reason, format string, args ...any) {
	c.refusals = append(c.refusals, Refusal{Path: at.String(), Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// sortedRefusals returns the refusals in a stable order, without duplicates.
func (c *comparison) sortedRefusals() []Refusal {
	slices.SortFunc(c.refusals, func(a, b Refusal) int {
		if n := strings.Compare(a.Path, b.Path); n != 0 {
			return n
		}
		return strings.Compare(string(a.Reason)+a.Message, string(b.Reason)+b.Message)
	})
	return slices.Compact(c.refusals)
}

// intersect handles one node of both schemas. It copies existing and adds each constraint of next
// that existing does not imply, or refuses it. It only adds constraints, so the result accepts
// nothing that existing rejects.
func (c *comparison) intersect(at location, existing, next *Props) *Props {
	a, b := normal(existing), normal(next)
	result := a.DeepCopy()
	meeting, ok := baseOf(a).meet(baseOf(b))
	if !ok {
		c.refuse(at, TypeDiffers, "is %s in one schema and %s in the other; no value is both", baseOf(a), baseOf(b))
		return result
	}
	if meeting != baseOf(a) {
		if !c.narrow {
			c.refuse(at, TypeDiffers, "may be %s, which the other schema (%s) does not accept", baseOf(a), baseOf(b))
			return result
		}
		meeting.set(result)
	}
	c.nullable(at, result, a, b)
	c.embedded(at, result, a, b)
	c.format(at, result, a, b)
	relocate(result)

	kinds := kindsOf(result)
	if kinds&isArray != 0 {
		c.list(at, result, a, b)
	}
	if kinds&isObject != 0 {
		c.object(at, result, a, b)
	}
	c.constrain(at, result, b)
	c.combinations(at, result, a, b)
	c.rules(at, result, a, b)
	c.satisfiable(at, result)
	if at.root {
		result.Default = nil // the object as a whole has no default
	}
	return result
}

// nullable: the cluster removes or replaces a null if the field is not nullable, so the result may
// be nullable only if both are.
func (c *comparison) nullable(at location, result, a, b *Props) {
	if !a.Nullable || b.Nullable {
		return
	}
	if !c.narrow && len(a.Enum) == 0 {
		c.refuse(at, NullableDiffers, "may be null, which the other schema does not accept")
	}
	result.Nullable = false
}

// embedded: an embedded resource must have apiVersion, kind and metadata, regardless of its
// properties.
func (c *comparison) embedded(at location, result, a, b *Props) {
	if a.XEmbeddedResource == b.XEmbeddedResource {
		return
	}
	plain := a
	if a.XEmbeddedResource {
		plain = b
	}
	named := slices.ContainsFunc(metaFields(), func(f string) bool { _, ok := plain.Properties[f]; return ok })
	if !preserves(plain) || plain.AdditionalProperties != nil || named {
		c.refuse(at, EmbeddedDiffers, "is an embedded resource in only one schema, and the other one does not keep metadata")
		return
	}
	if !c.narrow && b.XEmbeddedResource {
		c.refuse(at, EmbeddedDiffers, "must be a complete object with apiVersion and kind in the other schema")
		return
	}
	result.XEmbeddedResource = true
	result.Type = "object"
}

// metaFields returns the fields that every object has, regardless of its schema.
func metaFields() []string { return []string{"apiVersion", "kind", "metadata"} }

func isMetaField(name string) bool { return slices.Contains(metaFields(), name) }

func preserves(p *Props) bool {
	return p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
}

// preserve returns p with preserved unknown fields.
func preserve(p *Props) *Props {
	if preserves(p) {
		return p
	}
	out := *p
	yes := true
	out.XPreserveUnknownFields = &yes
	return &out
}

// normal returns p in a normal form, so that equal schemas look equal. It removes the type
// constraints that int-or-string implies from anyOf and allOf, the only places where a CRD may
// repeat them.
func normal(p *Props) *Props {
	if !p.XIntOrString {
		return p
	}
	out := *p
	if isIntOrString(out.AnyOf) {
		out.AnyOf = nil
	}
	if len(out.AllOf) > 0 && isIntOrString(out.AllOf[0].AnyOf) {
		out.AllOf = slices.Clone(out.AllOf)
		out.AllOf[0].AnyOf = nil
		if empty(&out.AllOf[0]) {
			out.AllOf = out.AllOf[1:]
		}
	}
	return &out
}

func isIntOrString(anyOf []Props) bool {
	if len(anyOf) != 2 || anyOf[0].Type != "integer" || anyOf[1].Type != "string" {
		return false
	}
	first, second := anyOf[0], anyOf[1]
	first.Type, second.Type = "", ""
	return empty(&first) && empty(&second)
}

func empty(p *Props) bool {
	// Most schemas have one of these: equal would encode them, at each level of a type again.
	if p.Type != "" || len(p.Properties) > 0 || p.AdditionalProperties != nil {
		return false
	}
	return equal(p, &Props{})
}
