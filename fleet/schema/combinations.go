package schema

import "slices"

// combinations adds allOf, anyOf, oneOf and not of next. They are additional constraints that mean
// the same everywhere, so the union of both is what both schemas accept.
func (c *comparison) combinations(at location, result, a, b *Props) {
	if c.narrow {
		c.strip(at, result, result)
	}
	next := (&Props{AllOf: b.AllOf, AnyOf: b.AnyOf, OneOf: b.OneOf, Not: b.Not}).DeepCopy()
	c.strip(at, result, next)
	for _, part := range partsOf(next) {
		if implied(at, result, &part) {
			continue
		}
		if !c.narrow {
			c.refuse(at, CombinationDiffers, "must also satisfy %s of the other schema, which cannot be proven", nameOf(&part))
			continue
		}
		addPart(result, part)
	}
}

// partsOf splits the combinations of a schema into separate constraints.
func partsOf(p *Props) []Props {
	parts := slices.Clone(p.AllOf)
	if len(p.AnyOf) > 0 {
		parts = append(parts, Props{AnyOf: p.AnyOf})
	}
	if len(p.OneOf) > 0 {
		parts = append(parts, Props{OneOf: p.OneOf})
	}
	if p.Not != nil {
		parts = append(parts, Props{Not: p.Not})
	}
	return parts
}

// addPart adds part to p: in the matching keyword if that is free, and otherwise in allOf.
func addPart(p *Props, part Props) {
	switch {
	case len(p.AnyOf) == 0 && equal(&part, &Props{AnyOf: part.AnyOf}):
		p.AnyOf = part.AnyOf
	case len(p.OneOf) == 0 && equal(&part, &Props{OneOf: part.OneOf}):
		p.OneOf = part.OneOf
	case p.Not == nil && equal(&part, &Props{Not: part.Not}):
		p.Not = part.Not
	default:
		addAllOf(p, part)
	}
}

func nameOf(part *Props) string {
	switch {
	case len(part.AnyOf) > 0:
		return "anyOf"
	case len(part.OneOf) > 0:
		return "oneOf"
	case part.Not != nil:
		return "not"
	}
	return "allOf"
}

// implied reports whether every value that p accepts satisfies q. q is part of a combination and so
// has no type.
func implied(at location, p, q *Props) bool {
	if empty(q) || anyConjunct(p, func(r *Props) bool { return r != p && equal(r, q) }) {
		return true
	}
	for _, d := range constraintsOf(q, kindsOf(p)) {
		if !d.met(p) {
			return false
		}
	}
	for _, name := range q.Required {
		if kindsOf(p)&isObject != 0 && !always(at, p, name) {
			return false
		}
	}
	for name, sub := range q.Properties {
		f := fieldOf(at, p, name)
		if f.props == nil || !implied(location{unpruned: at.unpruned}, f.props, &sub) {
			return false
		}
	}
	if q.Items != nil && q.Items.Schema != nil {
		if items := itemsOf(p); items == nil || !implied(location{unpruned: at.unpruned}, items, q.Items.Schema) {
			return false
		}
	}
	return impliedFormat(p, q) && impliedChoices(p, q) &&
		!slices.ContainsFunc(q.AllOf, func(r Props) bool { return !implied(at, p, &r) })
}

// impliedFormat: without a type, a format rejects every value that is not a string.
func impliedFormat(p, q *Props) bool {
	f := formatOf(q)
	return f == "" || baseOf(p) == "string" && hasFormat(p, f) ||
		anyConjunct(p, func(r *Props) bool { return r != p && formatOf(r) == f })
}

func impliedChoices(p, q *Props) bool {
	has := func(part Props) bool {
		return anyConjunct(p, func(r *Props) bool {
			return slices.ContainsFunc(partsOf(&Props{AnyOf: r.AnyOf, OneOf: r.OneOf, Not: r.Not}), func(x Props) bool { return equal(&x, &part) })
		})
	}
	for _, part := range partsOf(&Props{AnyOf: q.AnyOf, OneOf: q.OneOf, Not: q.Not}) {
		if !has(part) {
			return false
		}
	}
	return true
}

// combined returns the schemas in the combinations of p itself.
func combined(p *Props) []*Props {
	var all []*Props
	for _, list := range [][]Props{p.AllOf, p.AnyOf, p.OneOf} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	if p.Not != nil {
		all = append(all, p.Not)
	}
	return all
}

// strip removes the constraints on fields that the structure of p does not have from the
// combinations of q. They always hold, because no object has the field, and a CRD must not mention
// it.
func (c *comparison) strip(at location, p, q *Props) {
	for _, part := range combined(q) {
		c.stripPart(at, p, part)
	}
}

func (c *comparison) stripPart(at location, p, part *Props) {
	for name, sub := range part.Properties {
		f, listed := p.Properties[name]
		switch {
		case listed:
			below := at.down(nil, nil, name, "."+name)
			c.stripPart(below, &f, &sub)
			part.Properties[name] = sub
		case kindsOf(p)&isObject == 0 || !possible(at, p, name):
			delete(part.Properties, name)
		default:
			c.refuse(at.down(nil, nil, name, "."+name), NotExpressible,
				"is constrained by a combination further up, but is not a property in the intersection of both schemas")
		}
	}
	if len(part.Properties) == 0 {
		part.Properties = nil
	}
	if part.Items != nil {
		if p.Items == nil || p.Items.Schema == nil {
			if kindsOf(p)&isArray != 0 && baseOf(p) != "string" {
				c.refuse(at, NotExpressible, "has items that a combination constrains, but no schema of its items")
			}
			part.Items = nil
		} else {
			c.stripPart(at.down(nil, nil, "*", "[*]"), p.Items.Schema, part.Items.Schema)
		}
	}
	c.strip(at, p, part)
}
