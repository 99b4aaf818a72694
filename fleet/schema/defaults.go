package schema

import (
	"maps"
	"slices"
)

// The control plane applies defaults, and the resulting object is what every cluster runs. So no
// cluster may apply a default of its own to a field of the result.

// defaultOf returns the default, or nil if there is none. A null counts as none.
func defaultOf(p *Props) any {
	if p.Default == nil {
		return nil
	}
	return decoded(*p.Default)
}

// fieldDefault determines the default of a property. If only one schema has a default, it applies
// to both, because the other does not define what absence means. If the defaults differ, the field
// becomes required.
func (c *comparison) fieldDefault(at, below location, name string, result, met, a, b *Props) {
	da, db := defaultOf(a), defaultOf(b)
	if !c.narrow {
		if da == nil && db != nil && !always(at, result, name) {
			c.refuse(below, DefaultDiffers, "may be absent, and the other schema would set a default")
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

// valueDefault determines the default of items and of map values, with which API servers replace a
// null. Without a default, nulls are rejected or removed.
func (c *comparison) valueDefault(at location, met, a, b *Props) {
	da, db := defaultOf(a), defaultOf(b)
	switch {
	case sameValue(da, db) && (da == nil || !c.narrow || c.holds(met, da, true, a, b)):
	case baseOf(a) == anything:
		c.refuse(at, DefaultDiffers, "may be null, which the two schemas replace with different defaults")
	case c.narrow:
		met.Default = nil
	}
}

// holds reports whether value can be the default of met: the API server rejects a CRD whose schema
// does not accept its own defaults. Rules cannot be evaluated here. So if there are any, both
// sources must have the default.
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

// ownDefaults: a cluster may set the default of a property that the result lacks. That is allowed
// if no constraint of the owner of the property, at this level or above, depends on it.
func (c *comparison) ownDefaults(at location, result, owner *Props, side func(ancestor) *Props) {
	for _, name := range slices.Sorted(maps.Keys(owner.Properties)) {
		own := owner.Properties[name]
		value := defaultOf(&own)
		if value == nil || possible(at, result, name) {
			continue
		}
		if why := seen(at, owner, &own, name, value, side); why != "" {
			c.refuse(location{path: at.path + "." + name}, DefaultDiffers,
				"has a default in one schema, is not known to the other, and %s", why)
		}
	}
}

// seen returns what depends on a field that a cluster defaults, or "" if nothing does.
func seen(at location, owner, own *Props, name string, value any, side func(ancestor) *Props) string {
	full := filled(own, value)
	switch {
	case hasRules(own) && (at.values || !sameValue(full, value)):
		return "rules apply to the default"
	case !valid(own, full):
		// A CRD's defaults are validated when it is created, but not for sets and maps, not with
		// the formats that apply to objects, and not in the values of maps.
		return "the default is not valid there"
	case anyConjunct(owner, func(q *Props) bool { return q.MaxProperties != nil }):
		return "the number of properties beside it is limited"
	}
	path := append(slices.Clip(at.above), ancestor{existing: owner, next: owner, field: name})
	for _, s := range path {
		p := side(s)
		if p == nil {
			continue
		}
		if looksAt(p, name) {
			return "an enum, anyOf, oneOf or not depends on it"
		}
		for _, rule := range p.XValidations {
			if readingOf(rule).reads(s.field) {
				return "a rule may read it: " + brief(rule.Rule)
			}
		}
	}
	return ""
}

// looksAt reports whether the enum of p or its combinations, at any depth, can distinguish objects
// with the field from those without.
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
