package schema

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Compare decides whether everything that existing accepts is accepted by
// next, and kept whole: then the result is existing. With narrow it finds
// instead a schema that accepts only what both do, existing's defaults and
// descriptions where the two agree. Refusals mean no, or that it cannot be
// decided; there is no result then.
//
// Objects are meant as the control plane stores them: pruned and defaulted by
// the result, which is what a cluster is sent.
func Compare(existing, next *Props, narrow bool) (*Props, []Refusal) {
	c := &comparison{narrow: narrow}
	if existing == nil || next == nil {
		c.refuse(place{}, SchemaMissing, "there is no schema to compare; ask the cluster's administrator for a CRD with one")
		return nil, c.refusals
	}
	c.supported(place{}, existing, true)
	c.supported(place{}, next, true)
	if len(c.refusals) > 0 {
		return nil, c.told()
	}
	result := c.meet(place{root: true}, existing, next)
	if len(c.refusals) > 0 {
		return nil, c.told()
	}
	if !narrow {
		return existing.DeepCopy(), nil
	}
	// The rules that narrow are not the ones that decide containment, so each
	// result is held against both of its sources before anybody relies on it.
	for _, source := range []*Props{existing, next} {
		check := &comparison{}
		check.meet(place{root: true}, result, source)
		if len(check.refusals) > 0 {
			return nil, check.told()
		}
	}
	return result, nil
}

// A comparison collects refusals; it goes on after one, so that all are told.
type comparison struct {
	narrow   bool
	refusals []Refusal
}

// A place is where in the two schemas a comparison stands.
type place struct {
	path string
	// root: of the whole object, whose metadata is implicit.
	root bool
	// unpruned: inside the metadata of an object. Nothing is pruned there, so
	// a schema that is silent on a field accepts it.
	unpruned bool
	// values: somewhere above are the values of a map, where the API server
	// does not check defaults.
	values bool
	// defined are the schemas that contain themselves, for Unknown.
	defined map[string]Props
	// above are the schemas that lead here, outermost first.
	above []step
}

// A step leads from two schemas to the ones below field.
type step struct {
	existing, next *Props
	field          string
}

func (p place) String() string {
	if p.path == "" {
		return "."
	}
	return p.path
}

func (p place) down(existing, next *Props, field, path string) place {
	return place{
		path: p.path + path, unpruned: p.unpruned, values: p.values,
		above: append(slices.Clip(p.above), step{existing, next, field}),
	}
}

func (c *comparison) refuse(at place, reason Reason, format string, args ...any) {
	c.refusals = append(c.refusals, Refusal{Path: at.String(), Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// told gives the refusals in a stable order, each once.
func (c *comparison) told() []Refusal {
	slices.SortFunc(c.refusals, func(a, b Refusal) int {
		if n := strings.Compare(a.Path, b.Path); n != 0 {
			return n
		}
		return strings.Compare(string(a.Reason)+a.Message, string(b.Reason)+b.Message)
	})
	return slices.Compact(c.refusals)
}

// meet is one node of both schemas: a copy of existing to which each
// constraint of next that existing does not imply is added, or refused.
// Adding is all it does, so the result accepts nothing that existing refuses.
func (c *comparison) meet(at place, existing, next *Props) *Props {
	a, b := normal(existing), normal(next)
	result := a.DeepCopy()
	meeting, ok := baseOf(a).meet(baseOf(b))
	if !ok {
		c.refuse(at, TypeDiffers, "is %s in one and %s in the other; no value is both", baseOf(a), baseOf(b))
		return result
	}
	if meeting != baseOf(a) {
		if !c.narrow {
			c.refuse(at, TypeDiffers, "may be %s, which the other, %s, does not accept", baseOf(a), baseOf(b))
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
	c.demand(at, result, b)
	c.combinations(at, result, a, b)
	c.rules(at, result, a, b)
	c.satisfiable(at, result)
	if at.root {
		result.Default = nil // nobody fills in an object
	}
	return result
}

// nullable: a null where the field may not be null is removed or replaced by
// the cluster, so it may only be accepted where both take it.
func (c *comparison) nullable(at place, result, a, b *Props) {
	if !a.Nullable || b.Nullable {
		return
	}
	if !c.narrow && len(a.Enum) == 0 {
		c.refuse(at, NullableDiffers, "may be null, which the other does not accept")
	}
	result.Nullable = false
}

// embedded: an embedded resource must have apiVersion and kind, and the
// metadata that every object has, whatever its properties say.
func (c *comparison) embedded(at place, result, a, b *Props) {
	if a.XEmbeddedResource == b.XEmbeddedResource {
		return
	}
	plain := a
	if a.XEmbeddedResource {
		plain = b
	}
	named := slices.ContainsFunc(metaFields(), func(f string) bool { _, ok := plain.Properties[f]; return ok })
	if !preserves(plain) || plain.AdditionalProperties != nil || named {
		c.refuse(at, EmbeddedDiffers, "is an embedded resource in only one of the two, and the other does not keep any metadata")
		return
	}
	if !c.narrow && b.XEmbeddedResource {
		c.refuse(at, EmbeddedDiffers, "must be a whole object with apiVersion and kind in the other")
		return
	}
	result.XEmbeddedResource = true
	result.Type = "object"
}

// metaFields are what every object has, however little its schema says.
func metaFields() []string { return []string{"apiVersion", "kind", "metadata"} }

func isMetaField(name string) bool { return slices.Contains(metaFields(), name) }

func preserves(p *Props) bool {
	return p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
}

// preserve returns p so that it keeps what it does not know.
func preserve(p *Props) *Props {
	if preserves(p) {
		return p
	}
	out := *p
	yes := true
	out.XPreserveUnknownFields = &yes
	return &out
}

// normal writes p so that equal things look equal: what int-or-string says
// already is taken out of anyOf and allOf, where it is the only mention of
// types that a CRD may have.
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

func empty(p *Props) bool { return equal(p, &apiextensionsv1.JSONSchemaProps{}) }
