package schema

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// isSensitive reports whether an attribute's values must never be shown. Write-only values are not
// even stored.
func isSensitive(a *providerapi.Attribute) bool { return a.Sensitive || a.WriteOnly }

// Mark marks the values that the block declares sensitive as providerapi.Sensitive. Nulls are not
// marked, because their absence is visible anyway, and most optional secrets are absent. Other
// marks are kept.
func Mark(block *providerapi.Block, v cty.Value) cty.Value {
	if HasSensitive(block) {
		v, _ = markBlock(block, v)
	}
	return v
}

// Unmark removes all marks, and returns the paths that were marked providerapi.Sensitive. A set with a
// sensitive element is sensitive as a whole, because elements are identified by their values.
func Unmark(v cty.Value) (cty.Value, []cty.Path) {
	unmarked, marks := v.UnmarkDeepWithPaths()
	var paths []cty.Path
	for _, m := range marks {
		if _, ok := m.Marks[providerapi.Sensitive]; ok {
			paths = append(paths, m.Path)
		}
	}
	return unmarked, paths
}

// HasSensitive reports whether the block declares anything sensitive.
func HasSensitive(b *providerapi.Block) bool {
	for i := range b.Blocks {
		if HasSensitive(&b.Blocks[i].Block) {
			return true
		}
	}
	return anySensitive(b.Attributes)
}

func anySensitive(attributes []providerapi.Attribute) bool {
	for i := range attributes {
		a := &attributes[i]
		if isSensitive(a) || a.Nested != nil && anySensitive(a.Nested.Attributes) {
			return true
		}
	}
	return false
}

// A marker marks a value and reports whether it set any marks. Values without new marks are not
// rebuilt.
type marker func(v cty.Value) (cty.Value, bool)

func markBlock(b *providerapi.Block, v cty.Value) (cty.Value, bool) {
	return markFields(v, func(visit func(string, marker)) {
		visitSensitive(b.Attributes, visit)
		for i := range b.Blocks {
			if n := &b.Blocks[i]; HasSensitive(&n.Block) {
				visit(n.Name, func(v cty.Value) (cty.Value, bool) { return markBlocks(n, v) })
			}
		}
	})
}

// visitSensitive visits the attributes that are or contain something sensitive.
func visitSensitive(all []providerapi.Attribute, visit func(string, marker)) {
	for i := range all {
		if a := &all[i]; isSensitive(a) || a.Nested != nil && anySensitive(a.Nested.Attributes) {
			visit(a.Name, func(v cty.Value) (cty.Value, bool) { return markAttribute(a, v) })
		}
	}
}

func markField(b *providerapi.Block, name string, v cty.Value) cty.Value {
	if a := b.Attribute(name); a != nil {
		v, _ = markAttribute(a, v)
	} else if n := b.Nested(name); n != nil && HasSensitive(&n.Block) {
		v, _ = markBlocks(n, v)
	}
	return v
}

func markBlocks(n *providerapi.NestedBlock, v cty.Value) (cty.Value, bool) {
	return markEach(n.Nesting, v, func(v cty.Value) (cty.Value, bool) { return markBlock(&n.Block, v) })
}

func markAttribute(a *providerapi.Attribute, v cty.Value) (cty.Value, bool) {
	switch {
	case v.IsNull():
		return v, false
	case isSensitive(a):
		return v.Mark(providerapi.Sensitive), true
	case a.Nested == nil || !anySensitive(a.Nested.Attributes):
		return v, false
	}
	return markEach(a.Nested.Nesting, v, func(v cty.Value) (cty.Value, bool) {
		return markFields(v, func(visit func(string, marker)) { visitSensitive(a.Nested.Attributes, visit) })
	})
}

// markFields applies the visited markers to the fields of an object.
func markFields(v cty.Value, each func(visit func(string, marker))) (cty.Value, bool) {
	was := v
	v, marks := v.Unmark()
	if v.IsNull() || !v.IsKnown() || !v.Type().IsObjectType() {
		return was, false
	}
	var fields map[string]cty.Value
	each(func(name string, mark marker) {
		if of, set := mark(v.GetAttr(name)); set {
			if fields == nil {
				fields = v.AsValueMap()
			}
			fields[name] = of
		}
	})
	if fields == nil {
		return was, false
	}
	return cty.ObjectVal(fields).WithMarks(marks), true
}

// markEach applies a marker to each element of a collection, or to a single object.
func markEach(nesting providerapi.Nesting, v cty.Value, mark marker) (cty.Value, bool) {
	if nesting == providerapi.NestingSingle || nesting == providerapi.NestingGroup {
		return mark(v)
	}
	was := v
	v, marks := v.Unmark()
	if !known(v) || !v.CanIterateElements() || v.LengthInt() == 0 {
		return was, false
	}
	ty := v.Type()
	var keys []string
	var elements []cty.Value
	some := false
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		element, set := mark(element)
		elements, some = append(elements, element), some || set
		if ty.IsMapType() || ty.IsObjectType() {
			keys = append(keys, key.AsString())
		}
	}
	if !some {
		return was, false
	}
	return rebuild(ty, keys, elements).WithMarks(marks), true
}

// rebuild returns a collection of the same kind as ty with the given elements.
func rebuild(ty cty.Type, keys []string, elements []cty.Value) cty.Value {
	if ty.IsMapType() || ty.IsObjectType() {
		fields := make(map[string]cty.Value, len(keys))
		for i, key := range keys {
			fields[key] = elements[i]
		}
		if ty.IsMapType() {
			return cty.MapVal(fields)
		}
		return cty.ObjectVal(fields)
	}
	switch {
	case ty.IsTupleType():
		return cty.TupleVal(elements)
	case ty.IsSetType():
		return cty.SetVal(elements)
	}
	return cty.ListVal(elements)
}
