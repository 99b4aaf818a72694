package schema

import "slices"

// widen gives a schema that accepts, whole, what either of two does. Nil
// describes nothing. It is for what clusters report: all of it should arrive,
// so whatever the two do not share is let go.
func widen(a, b *Props) *Props {
	yes, loose := true, anyProps()
	switch {
	case a == nil && b == nil:
		return loose
	case a == nil:
		return widen(b, nil)
	case b == nil:
		// Who has no schema for it removes it, so nobody reports anything else.
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
			// A default here would be reported by nobody.
			merged.Default = nil
			out.Properties[name] = *merged
		}
	}
	out.Required = inBoth(a.Required, b.Required)
	if mapTypeOf(a) == mapTypeOf(b) {
		out.XMapType = a.XMapType
	}
}

// widenField: where one does not describe the field, it removes it or keeps
// whatever it is.
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

// anyProps accept anything, whole.
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
	// The items decide whether a list can be merged: only where they are equal.
	if listTypeOf(a) == listTypeOf(b) && sameWords(a.XListMapKeys, b.XListMapKeys) && equal(a.Items.Schema, b.Items.Schema) {
		out.XListType, out.XListMapKeys = a.XListType, slices.Clone(a.XListMapKeys)
	}
}
