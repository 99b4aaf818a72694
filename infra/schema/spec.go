package schema

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// SpecOptions configure Spec.
type SpecOptions struct {
	// Secret is the name of the Secret that will hold the sensitive values.
	Secret string
	// Computed includes optional arguments that the provider may have computed: a value does not
	// show whether they were set. Without them a plan for the resource has no changes; with them a
	// similar resource can be created.
	Computed bool
	// Written leaves out what people seldom write: optional arguments that are empty, zero or false, as
	// the oldest SDK reads what was not set, and deprecated ones that the provider may have computed.
	Written bool
	// Omit has names of optional arguments that the provider may have computed, at any depth, to leave
	// out, because they exclude others.
	Omit map[string]bool
}

// A Placeholder is a sensitive argument and its key in the Secret.
type Placeholder struct {
	Path cty.Path
	Key  string
}

// Spec returns arguments that would produce the value, and the values that must be in the Secret,
// under the same keys as in Connection. The arguments contain nothing sensitive. DESIGN.md lists
// what a spec cannot express.
func (k Kind) Spec(v cty.Value, options SpecOptions) (map[string]any, []Placeholder) {
	v, _ = v.UnmarkDeep()
	s := &specWriter{options: options}
	arguments, _ := s.block(nil, &k.Schema.Block, v, true).(map[string]any)
	return arguments, s.placeholders
}

type specWriter struct {
	options      SpecOptions
	placeholders []Placeholder
}

func (s *specWriter) block(path cty.Path, b *providerapi.Block, v cty.Value, top bool) any {
	if !known(v) {
		return nil
	}
	fields := v.AsValueMap()
	object := map[string]any{}
	for i := range b.Attributes {
		a := &b.Attributes[i]
		// The oldest SDK has an argument id in every resource, which no one sets.
		if !s.wanted(a) || top && a.Name == "id" && a.Computed {
			continue
		}
		if value := s.attribute(path.GetAttr(a.Name), a, fields[a.Name]); value != nil && !s.unwritten(a, fields[a.Name]) {
			object[a.Name] = value
		}
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		value := s.nested(path.GetAttr(n.Name), n.Nesting, fields[n.Name], func(path cty.Path, v cty.Value) any {
			return s.block(path, &n.Block, v, false)
		})
		if value == nil || empty(value) && n.Nesting != providerapi.NestingSingle {
			continue
		}
		if list, ok := value.([]any); ok && n.Max == 1 && len(list) == 1 {
			value = list[0]
		}
		object[n.Name] = value
	}
	return object
}

func (s *specWriter) wanted(a *providerapi.Attribute) bool {
	return settable(a) && (!a.Computed || a.Required || s.options.Computed && !s.options.Omit[a.Name] && !(s.options.Written && a.Deprecated))
}

// unwritten reports whether people seldom write an argument with this value.
func (s *specWriter) unwritten(a *providerapi.Attribute, v cty.Value) bool {
	return s.options.Written && !a.Required && !isSensitive(a) && isZero(v)
}

func isZero(v cty.Value) bool {
	switch ty := v.Type(); {
	case ty == cty.String:
		return v.AsString() == ""
	case ty == cty.Bool:
		return v.False()
	case ty == cty.Number:
		return v.AsBigFloat().Sign() == 0
	}
	return v.CanIterateElements() && v.LengthInt() == 0
}

func (s *specWriter) attribute(path cty.Path, a *providerapi.Attribute, v cty.Value) any {
	switch {
	case isSensitive(a) && (known(v) || a.Required):
		key := secretKey(path)
		s.placeholders = append(s.placeholders, Placeholder{Path: path.Copy(), Key: key})
		return map[string]any{secretKeyRef: map[string]any{secretKeyRefName: s.options.Secret, secretKeyRefKey: key}}
	case a.Nested == nil || isSensitive(a):
		return literal(v)
	}
	return s.nested(path, a.Nested.Nesting, v, func(path cty.Path, v cty.Value) any {
		if !known(v) {
			return nil
		}
		fields := v.AsValueMap()
		object := map[string]any{}
		for i := range a.Nested.Attributes {
			inner := &a.Nested.Attributes[i]
			if !s.wanted(inner) {
				continue
			}
			if value := s.attribute(path.GetAttr(inner.Name), inner, fields[inner.Name]); value != nil && !s.unwritten(inner, fields[inner.Name]) {
				object[inner.Name] = value
			}
		}
		return object
	})
}

func (s *specWriter) nested(path cty.Path, nesting providerapi.Nesting, v cty.Value, one func(cty.Path, cty.Value) any) any {
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		return one(path, v)
	}
	if !known(v) {
		return nil
	}
	return eachIndexed(path, v, one)
}

// eachIndexed converts a collection's elements to JSON. Elements of sets are indexed in cty's
// order, like those of lists.
func eachIndexed(path cty.Path, v cty.Value, one func(cty.Path, cty.Value) any) any {
	if ty := v.Type(); ty.IsMapType() || ty.IsObjectType() {
		object := map[string]any{}
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			object[key.AsString()] = one(path.Index(key), element)
		}
		return object
	}
	list := []any{}
	for it := v.ElementIterator(); it.Next(); {
		_, element := it.Element()
		list = append(list, one(path.IndexInt(len(list)), element))
	}
	return list
}

func known(v cty.Value) bool { return v != cty.NilVal && v.IsKnown() && !v.IsNull() }

// literal encodes a value so that decoding returns the same value. Null fields of objects are
// omitted, which decodes to null; null entries of a map are kept.
func literal(v cty.Value) any {
	if !known(v) {
		return nil
	}
	ty := v.Type()
	switch {
	case ty == cty.String:
		return escape(v.AsString())
	case ty == cty.Bool:
		return v.True()
	case ty == cty.Number:
		return number(v.AsBigFloat())
	case !v.CanIterateElements():
		return nil
	}
	value := eachIndexed(nil, v, func(_ cty.Path, v cty.Value) any { return literal(v) })
	if object, ok := value.(map[string]any); ok && ty.IsObjectType() {
		for name, value := range object {
			if value == nil {
				delete(object, name)
			}
		}
	}
	return value
}
