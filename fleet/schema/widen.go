package schema

import "slices"

// widen returns a schema that accepts, and keeps whole, everything that either schema accepts. Nil
// accepts nothing. It is used for reports of clusters, which must arrive completely, so constraints
// that the two do not share are dropped.
func widen(a, b *Props) *Props {
	yes, loose := true, anyProps()
	switch {
	case a == nil && b == nil:
		return loose
	case a == nil:
		return widen(b, nil)
	case b == nil:
		// A cluster without a schema for it drops it, so no other value is reported.
		return a.DeepCopy()
	case equal(a, b):
		return a.DeepCopy()
	case baseOf(a) != baseOf(b):
		loose.Description = a.Description
		return loose
	}
	out := &Props{Type: a.Type, XIntOrString: a.XIntOrString, Description: a.Description, Nullable: a.Nullable || b.Nullable}
	if a.XEmbeddedResource || b.XEmbeddedResource || hasMapOf(a) != hasMapOf(b) {
		out.XPreserveUnknownFields = &yes
		return out
	}
	if preserves(a) || preserves(b) || baseOf(a) == anything {
		out.XPreserveUnknownFields = &yes
	}
	widenFields(out, a, b)
	widenList(out, a, b)
	if formatOf(a) == formatOf(b) {
		out.Format = a.Format
	}
	for _, rule := range a.XValidations {
		h := readingOf(rule)
		shared := slices.ContainsFunc(b.XValidations, func(r Rule) bool { return sameRule(r, rule) })
		if shared && sameShape(h, a, out) && sameShape(h, b, out) {
			out.XValidations = append(out.XValidations, rule)
		}
	}
	return out
}

func hasMapOf(p *Props) bool { return p.AdditionalProperties != nil }

func widenFields(out, a, b *Props) {
	if hasMapOf(a) {
		out.AdditionalProperties = a.AdditionalProperties.DeepCopy()
		if va, vb := a.AdditionalProperties.Schema, b.AdditionalProperties.Schema; va != nil && vb != nil {
			out.AdditionalProperties.Schema = widen(va, vb)
		} else {
			yes := true
			out.AdditionalProperties, out.XPreserveUnknownFields = nil, &yes
		}
		return
	}
	for _, p := range []*Props{a, b} {
		for name, f := range p.Properties {
			if _, done := out.Properties[name]; done {
				continue
			}
			if out.Properties == nil {
				out.Properties = map[string]Props{}
			}
			merged := widenField(name, &f, a, b)
			// A default is never reported.
			merged.Default = nil
			out.Properties[name] = *merged
		}
	}
	out.Required = inBoth(a.Required, b.Required)
	if mapTypeOf(a) == mapTypeOf(b) {
		out.XMapType = a.XMapType
	}
}

// widenField: a schema that does not describe the field either drops it or keeps any value.
func widenField(name string, f, a, b *Props) *Props {
	fa, inA := a.Properties[name]
	fb, inB := b.Properties[name]
	switch {
	case inA && inB:
		return widen(&fa, &fb)
	case inA && preserves(b), inB && preserves(a):
		return widen(f, anyProps())
	}
	return f.DeepCopy()
}

// anyProps returns a schema that accepts anything, and keeps it whole.
func anyProps() *Props {
	yes := true
	return &Props{XPreserveUnknownFields: &yes, Nullable: true}
}

func widenList(out, a, b *Props) {
	if a.Items == nil || a.Items.Schema == nil || b.Items == nil || b.Items.Schema == nil {
		if baseOf(a) == "array" {
			out.Items = a.Items.DeepCopy()
		}
		return
	}
	out.Items = a.Items.DeepCopy()
	out.Items.Schema = widen(a.Items.Schema, b.Items.Schema)
	// Whether a list can be merged depends on its items, so the list type is kept only if the items
	// are equal.
	if listTypeOf(a) == listTypeOf(b) && sameWords(a.XListMapKeys, b.XListMapKeys) && equal(a.Items.Schema, b.Items.Schema) {
		out.XListType, out.XListMapKeys = a.XListType, slices.Clone(a.XListMapKeys)
	}
}
