package schema

import (
	"maps"
	"slices"
)

// Defaults are filled in by the control plane, and what an object then says is
// what every cluster runs. So a cluster must find nothing left to fill in
// among the fields that the result has.

// defaultOf gives a default, nil if there is none. A null is none.
func defaultOf(p *Props) any {
	if p.Default == nil {
		return nil
	}
	return decoded(*p.Default)
}

// fieldDefault decides on the default of a property. If only one of the two
// has one, it holds for both: nobody else says what its absence means. If they
// differ, the field has to be given.
func (c *comparison) fieldDefault(at, below place, name string, result, met, a, b *Props) {
	da, db := defaultOf(a), defaultOf(b)
	if !c.narrow {
		if da == nil && db != nil && !always(at, result, name) {
			c.refuse(below, DefaultDiffers, "may be absent, and the other would fill in a value")
		}
		return
	}
	agreed := a.Default
	switch {
	case da == nil && db == nil:
		return
	case da == nil && always(at, result, name):
		met.Default = nil
		return
	case da == nil:
		agreed = b.Default
	case db != nil && !sameValue(da, db):
		agreed = nil
	}
	met.Default = agreed
	both := da != nil && db != nil
	if agreed != nil && c.holds(met, decoded(*agreed), both, a, b) {
		return
	}
	met.Default = nil
	if !demanded(result, name) {
		result.Required = append(result.Required, name)
	}
}

// valueDefault decides on the default of items and of the values of maps,
// which API servers put in the place of a null. Without one, nulls are
// refused or removed.
func (c *comparison) valueDefault(at place, met, a, b *Props) {
	da, db := defaultOf(a), defaultOf(b)
	switch {
	case sameValue(da, db) && (da == nil || !c.narrow || c.holds(met, da, true, a, b)):
	case baseOf(a) == anything:
		c.refuse(at, DefaultDiffers, "may be null, for which the two do not fill in the same")
	case c.narrow:
		met.Default = nil
	}
}

// holds tells whether value may be the default of met: the API server refuses
// a CRD whose defaults its own schema does not accept. Rules cannot be
// evaluated here, so where there are any, both sources must vouch for it.
func (c *comparison) holds(met *Props, value any, both bool, sources ...*Props) bool {
	for _, source := range sources {
		if equalButDefault(met, source) && sameValue(defaultOf(source), value) {
			return true
		}
	}
	return (both || !hasRules(met)) && accepts(met, value)
}

func equalButDefault(a, b *Props) bool {
	x, y := *a, *b
	x.Default, y.Default = nil, nil
	return equal(&x, &y)
}

// ownDefaults: a cluster whose type has a property that the result lacks may
// fill it in. That is its own business as long as nothing that the owner of
// the property demands, here or further up, looks at it.
func (c *comparison) ownDefaults(at place, result, owner *Props, side func(step) *Props) {
	for _, name := range slices.Sorted(maps.Keys(owner.Properties)) {
		own := owner.Properties[name]
		value := defaultOf(&own)
		if value == nil || possible(at, result, name) {
			continue
		}
		if why := seen(at, owner, &own, name, value, side); why != "" {
			c.refuse(place{path: at.path + "." + name}, DefaultDiffers,
				"is filled in by one and not known to the other, and %s", why)
		}
	}
}

// seen says what looks at a field that a cluster fills in, "" if nothing does.
func seen(at place, owner, own *Props, name string, value any, side func(step) *Props) string {
	full := filled(own, value)
	switch {
	case hasRules(own) && (at.values || !sameValue(full, value)):
		return "rules apply to what is filled in"
	case !valid(own, full):
		// A CRD's defaults are checked when it is made, but neither for sets and
		// maps, nor with formats as objects are, nor in the values of maps.
		return "the default is not valid there"
	case anyConjunct(owner, func(q *Props) bool { return q.MaxProperties != nil }):
		return "the number of properties beside it is limited"
	}
	path := append(slices.Clip(at.above), step{existing: owner, next: owner, field: name})
	for _, s := range path {
		p := side(s)
		if p == nil {
			continue
		}
		if looksAt(p, name) {
			return "an enum, anyOf, oneOf or not looks at it"
		}
		for _, rule := range p.XValidations {
			if readingOf(rule).reads(s.field) {
				return "a rule may read it: " + brief(rule.Rule)
			}
		}
	}
	return ""
}

// looksAt tells whether the enum of p or what stands in its combinations, at
// any depth, may tell objects with the field from those without.
func looksAt(p *Props, name string) bool {
	return len(p.Enum) > 0 || slices.ContainsFunc(combined(p), func(q *Props) bool { return tells(q, name) })
}

func tells(p *Props, name string) bool {
	if looksAt(p, name) || p.MaxProperties != nil || p.MinProperties != nil || slices.Contains(p.Required, name) {
		return true
	}
	for property, q := range p.Properties {
		if property == name || tells(&q, name) {
			return true
		}
	}
	return p.Items != nil && p.Items.Schema != nil && tells(p.Items.Schema, name)
}
