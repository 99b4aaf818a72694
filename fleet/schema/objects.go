package schema

import (
	"maps"
	"slices"
)

// unlisted is how a schema handles fields outside its properties.
type unlisted int

const (
	// prunes: removes them, so no stored object has any.
	prunes unlisted = iota
	// keeps them whole (x-kubernetes-preserve-unknown-fields).
	keeps
	// describes them: the values of a map (additionalProperties: {…}).
	describes
	// flattens: keeps them, but removes the contents of objects in them (additionalProperties:
	// true).
	flattens
	// forbids them (additionalProperties: false).
	forbids
)

// unlistedOf: additionalProperties takes precedence over preserving, as in the API server's
// pruning.
func unlistedOf(at location, p *Props) unlisted {
	switch extra := p.AdditionalProperties; {
	case extra != nil && extra.Schema != nil:
		return describes
	case extra != nil && !extra.Allows:
		return forbids
	case at.unpruned:
		return keeps
	case extra != nil:
		return flattens
	case preserves(p):
		return keeps
	}
	return prunes
}

// A field is how one schema describes one property.
type field struct {
	// props is the schema of the property, or nil.
	props *Props
	rest  unlisted
}

func fieldOf(at location, p *Props, name string) field {
	if f, ok := p.Properties[name]; ok {
		return field{props: &f}
	}
	if (at.root || p.XEmbeddedResource) && isMetaField(name) {
		if name == "metadata" {
			return field{props: &Props{Type: "object"}}
		}
		return field{props: &Props{Type: "string"}}
	}
	if rest := unlistedOf(at, p); rest != describes {
		return field{rest: rest}
	}
	value := *p.AdditionalProperties.Schema
	value.Default = nil // it only replaces nulls: see valueDefault
	return field{props: &value, rest: describes}
}

// object compares properties, other fields, and required fields.
func (c *comparison) object(at location, result, a, b *Props) {
	c.properties(at, result, a, b)
	c.unlisted(at, result, a, b)
	c.dropped(at, result, a, b)
	if result.XEmbeddedResource && !preserves(result) && len(result.Properties) == 0 {
		// A CRD has to name a field here. Every object has this one.
		c.set(result, "kind", &Props{Type: "string"})
	}
	mapType(at, result, b)
	c.required(at, result, a, b)
	c.ownDefaults(at, result, a, func(s ancestor) *Props { return s.existing })
	c.ownDefaults(at, result, b, func(s ancestor) *Props { return s.next })
}

func mapTypeOf(p *Props) string {
	if p.XMapType == nil || *p.XMapType == "granular" {
		return "granular"
	}
	return *p.XMapType
}

// mapType: no object is rejected for its map type, and a cluster is sent the whole map in any case.
// If one map is atomic, the result is atomic too. The exception is a map with transition rules,
// which an atomic map must not contain.
func mapType(at location, result, b *Props) {
	if at.root || result.Type != "object" {
		return
	}
	if result.XMapType == nil || mapTypeOf(b) == "atomic" {
		result.XMapType = b.XMapType
	}
	if mapTypeOf(result) == "atomic" && transitionsBelow(result) {
		result.XMapType = nil
	}
}

// properties compares each property of either schema.
func (c *comparison) properties(at location, result, a, b *Props) {
	names := slices.Sorted(maps.Keys(a.Properties))
	for _, name := range slices.Sorted(maps.Keys(b.Properties)) {
		if _, both := a.Properties[name]; !both {
			names = append(names, name)
		}
	}
	for _, name := range names {
		below := at.down(a, b, name, "."+name)
		below.unpruned = at.unpruned || name == "metadata" && (at.root || result.XEmbeddedResource)
		fa, fb := fieldOf(at, a, name), fieldOf(at, b, name)
		switch {
		case fa.props != nil && fb.props != nil:
			met := c.intersect(below, fa.props, fb.props)
			c.fieldDefault(at, below, name, result, met, fa.props, fb.props)
			c.set(result, name, met)
		case fa.props != nil:
			if fb.rest == keeps || fb.rest == flattens && flat(fa.props) {
				break // unchanged
			}
			if !c.narrow {
				c.refuse(below, PropertyUnknown, "is a field that the other schema does not have, so it would be dropped there")
				break
			}
			delete(result.Properties, name)
		case fa.rest == prunes || fa.rest == forbids:
			// No object has the field, so its schema in next is irrelevant.
		case !c.narrow:
			c.refuse(below, UnknownFieldsDiffer, "may have any content, which the other schema restricts")
		case fa.rest == flattens && !flat(fb.props):
			// existing keeps only a part of the field.
		default:
			c.set(result, name, fb.props)
		}
	}
}

// set changes the result. Without narrow, existing is the result and stays unchanged, because later
// comparisons read it.
func (c *comparison) set(result *Props, name string, p *Props) {
	if !c.narrow {
		return
	}
	if result.Properties == nil {
		result.Properties = map[string]Props{}
	}
	result.Properties[name] = *p
}

// flat reports whether the values of p survive where nested objects are emptied.
func flat(p *Props) bool {
	return slices.Contains([]base{"string", "integer", "number", "boolean", intOrString}, baseOf(p))
}

// unlisted restricts other fields in the result to what both schemas accept.
func (c *comparison) unlisted(at location, result, a, b *Props) {
	ua, ub := unlistedOf(at, a), unlistedOf(at, b)
	switch {
	case ua == prunes, ua == keeps && ub == keeps, ua == flattens && (ub == keeps || ub == flattens):
		// Unchanged.
	case ua == forbids || ub == forbids:
		c.forbidden(at, result, a, b)
	case ua == describes && ub == describes:
		below := at.down(a, b, "*", "[*]")
		below.values = true
		va, vb := a.AdditionalProperties.Schema, b.AdditionalProperties.Schema
		value := c.intersect(below, va, vb)
		c.valueDefault(below, value, va, vb)
		if c.narrow {
			result.AdditionalProperties.Schema = value
		}
	case ua == describes && (ub == keeps || ub == flattens && flat(a.AdditionalProperties.Schema)):
		// The properties of next have been compared with the values above.
		if c.narrow && len(result.Properties) > 0 {
			result.AdditionalProperties, result.XPreserveUnknownFields = nil, nil
		}
	case !c.narrow:
		c.refuse(at, UnknownFieldsDiffer, "may have unknown fields, which the other schema would drop or reject")
	default:
		c.narrowUnlisted(at, result, ua, ub, b)
	}
}

// narrowUnlisted handles the pairs in which next is narrower. A schema can describe either
// properties or map values. If the two schemas keep other fields in incompatible ways, only the
// named properties remain.
func (c *comparison) narrowUnlisted(at location, result *Props, ua, ub unlisted, b *Props) {
	allFlat := true
	for _, f := range result.Properties {
		allFlat = allFlat && flat(&f)
	}
	switch {
	case ub == describes && (ua == keeps || flat(b.AdditionalProperties.Schema)):
		result.AdditionalProperties, result.XPreserveUnknownFields = nil, nil
		if len(result.Properties) == 0 {
			result.AdditionalProperties = b.AdditionalProperties.DeepCopy()
		}
	case ua == keeps && ub == flattens && allFlat:
		result.AdditionalProperties, result.XPreserveUnknownFields = b.AdditionalProperties.DeepCopy(), nil
	case ub == prunes || len(result.Properties) > 0:
		result.AdditionalProperties, result.XPreserveUnknownFields = nil, nil
	default:
		c.refuse(at, UnknownFieldsDiffer, "keeps unknown fields in another way than the other schema")
	}
}

// dropped ensures that a property that the result dropped, because one schema would lose a part of
// it, is not accepted as an unknown field.
func (c *comparison) dropped(at location, result, a, b *Props) {
	if !c.narrow {
		return
	}
	for _, p := range []*Props{a, b} {
		for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
			if fieldOf(at, result, name).props != nil || !possible(at, result, name) {
				continue
			}
			result.AdditionalProperties, result.XPreserveUnknownFields = nil, nil
			if possible(at, result, name) {
				c.refuse(at.down(a, b, name, "."+name), UnknownFieldsDiffer, "is a property of one schema, of which the other keeps only a part")
			}
		}
	}
}

// forbidden handles additionalProperties: false on at least one side.
func (c *comparison) forbidden(at location, result, a, b *Props) {
	ua, ub := unlistedOf(at, a), unlistedOf(at, b)
	switch {
	case ua == forbids && len(b.Properties) == 0 && len(a.Properties) == 0:
		// existing accepts only {}, which every next accepts.
	case c.narrow && ub == forbids && len(result.Properties) == 0:
		result.AdditionalProperties, result.XPreserveUnknownFields = b.AdditionalProperties.DeepCopy(), nil
	default:
		c.refuse(at, UnknownFieldsDiffer, "allows other fields in only one of the two schemas (additionalProperties: false)")
	}
}

// required: a field that always has a default counts as required.
func (c *comparison) required(at location, result, a, b *Props) {
	for _, name := range a.Required {
		if c.narrow && !possible(at, result, name) {
			c.refuse(at.down(a, b, name, "."+name), NothingLeft, "is required, but not known to the other schema: no object would satisfy both")
		}
	}
	for _, name := range b.Required {
		if always(at, result, name) {
			continue
		}
		below := at.down(a, b, name, "."+name)
		if own, ok := b.Properties[name]; ok && defaultOf(&own) != nil && !possible(at, result, name) {
			continue // the cluster sets it by itself: ownDefaults
		}
		switch {
		case !possible(at, result, name):
			c.refuse(below, NothingLeft, "is required in the other schema, but not known here: no object would satisfy both")
		case !c.narrow:
			c.refuse(below, RequiredDiffers, "is required in the other schema")
		default:
			result.Required = append(result.Required, name)
		}
	}
}

// possible reports whether an object that p accepts may have the field.
func possible(at location, p *Props, name string) bool {
	f := fieldOf(at, p, name)
	return f.props != nil || f.rest != prunes && f.rest != forbids
}

// always reports whether every object that p accepts has the field.
func always(at location, p *Props, name string) bool {
	if isMetaField(name) && (at.root || p.XEmbeddedResource && name != "metadata") {
		return true
	}
	f, ok := p.Properties[name]
	return demanded(p, name) || ok && defaultOf(&f) != nil
}

// demanded reports whether p requires the field by name.
func demanded(p *Props, name string) bool {
	return anyConjunct(p, func(q *Props) bool { return slices.Contains(q.Required, name) })
}
