package schema

import (
	"maps"
	"regexp"
	"slices"
)

// supported refuses constructs that a structural schema cannot contain, or that no API server
// accepts in a CRD: their meaning in a comparison would be undefined. structural is false inside
// allOf, anyOf, oneOf and not.
func (c *comparison) supported(at location, p *Props, structural bool) {
	for _, x := range []struct {
		name  string
		found bool
	}{
		{"$ref", p.Ref != nil}, {"id", p.ID != ""}, {"$schema", p.Schema != ""}, {"definitions", len(p.Definitions) > 0},
		{"patternProperties", len(p.PatternProperties) > 0}, {"dependencies", len(p.Dependencies) > 0},
		{"additionalItems", p.AdditionalItems != nil}, {"a list of schemas for items", p.Items != nil && p.Items.Schema == nil},
		{"uniqueItems", p.UniqueItems},
		{"an invalid pattern", !compiles(p.Pattern)},
	} {
		if x.found {
			c.refuse(at, UnsupportedConstruct, "has %s, which no API server accepts in a CRD", x.name)
		}
	}
	if d := defaultOf(p); d != nil && structural && len(unknown(location{}, p, d)) > 0 {
		c.refuse(at, UnsupportedConstruct, "has a default with unknown fields")
	}
	if hasNull(defaultOf(p)) {
		// It may be stored, and is removed when the object is sent.
		c.refuse(at, UnsupportedConstruct, "has a default that contains null, which API servers handle differently")
	}
	q := normal(p)
	if structural {
		c.structure(at, q)
	} else if !valueOnly(q) {
		c.refuse(at, UnsupportedConstruct, "declares structure inside allOf, anyOf, oneOf or not, so it is not a structural schema")
	}
	for _, part := range combined(q) {
		c.supported(at, part, false)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Properties)) {
		f := q.Properties[name]
		c.supported(at.down(nil, nil, name, "."+name), &f, structural)
	}
	if q.Items != nil && q.Items.Schema != nil {
		c.supported(at.down(nil, nil, "*", "[*]"), q.Items.Schema, structural)
	}
	if q.AdditionalProperties != nil && q.AdditionalProperties.Schema != nil {
		c.supported(at.down(nil, nil, "*", "[*]"), q.AdditionalProperties.Schema, structural)
	}
}

func (c *comparison) structure(at location, p *Props) {
	known := []string{"", "object", "array", "string", "integer", "number", "boolean"}
	switch {
	case !slices.Contains(known, p.Type):
		c.refuse(at, UnsupportedConstruct, "has type %q, which a CRD does not support", p.Type)
	case p.XIntOrString && (p.Type != "" || preserves(p) || p.XEmbeddedResource):
		c.refuse(at, UnsupportedConstruct, "combines x-kubernetes-int-or-string with another type")
	case p.Type == "" && !p.XIntOrString && !preserves(p):
		c.refuse(at, UnsupportedConstruct, "has no type, so it is not a structural schema")
	case p.Type == "array" && p.Items == nil:
		c.refuse(at, UnsupportedConstruct, "is a list without a schema of its items, so it is not a structural schema")
	case p.XEmbeddedResource && (p.Type != "object" || p.AdditionalProperties != nil):
		c.refuse(at, UnsupportedConstruct, "is an embedded resource but not a plain object")
	}
	if extra := p.AdditionalProperties; extra != nil && len(p.Properties) > 0 && (extra.Schema != nil || !extra.Allows) {
		c.refuse(at, UnsupportedConstruct, "has both properties and additionalProperties")
	}
	c.checkBounds(at, p)
	if kind := listTypeOf(p); !slices.Contains([]string{"atomic", "set", "map"}, kind) {
		c.refuse(at, UnsupportedConstruct, "has the unknown list type %q", kind)
	}
	if kind := mapTypeOf(p); !slices.Contains([]string{"atomic", "granular"}, kind) {
		c.refuse(at, UnsupportedConstruct, "has the unknown map type %q", kind)
	}
}

// valueOnly reports whether p contains only constraints on values.
func valueOnly(p *Props) bool {
	return p.Type == "" && p.Default == nil && !p.Nullable && p.AdditionalProperties == nil && p.XPreserveUnknownFields == nil &&
		!p.XEmbeddedResource && !p.XIntOrString && p.XListType == nil && len(p.XListMapKeys) == 0 && p.XMapType == nil && len(p.XValidations) == 0
}

func compiles(pattern string) bool {
	_, err := regexp.Compile(pattern)
	return err == nil
}
