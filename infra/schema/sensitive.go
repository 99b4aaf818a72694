package schema

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// isSensitive tells whether an attribute's values are shown to nobody. What may only be written is not even stored.
func isSensitive(a *contract.Attribute) bool { return a.Sensitive || a.WriteOnly }

// Mark marks as contract.Sensitive what the block says is, in a value of its type. Other marks stay.
func Mark(block *contract.Block, v cty.Value) cty.Value {
	if !hasSensitive(block) {
		return v
	}
	return markBlock(block, v)
}

// Unmark takes all marks off, and lists where contract.Sensitive stood. A set is sensitive as a whole, because what tells
// its elements apart is what they are.
func Unmark(v cty.Value) (cty.Value, []cty.Path) {
	unmarked, marks := v.UnmarkDeepWithPaths()
	var paths []cty.Path
	for _, m := range marks {
		if _, ok := m.Marks[contract.Sensitive]; ok {
			paths = append(paths, m.Path)
		}
	}
	return unmarked, paths
}

func hasSensitive(b *contract.Block) bool {
	for i := range b.Blocks {
		if hasSensitive(&b.Blocks[i].Block) {
			return true
		}
	}
	return anySensitive(b.Attributes)
}

func anySensitive(attributes []contract.Attribute) bool {
	for i := range attributes {
		a := &attributes[i]
		if isSensitive(a) || a.Nested != nil && anySensitive(a.Nested.Attributes) {
			return true
		}
	}
	return false
}

func markBlock(b *contract.Block, v cty.Value) cty.Value {
	return markFields(v, func(name string, v cty.Value) cty.Value { return markField(b, name, v) })
}

func markField(b *contract.Block, name string, v cty.Value) cty.Value {
	if a := b.Attribute(name); a != nil {
		return markAttribute(a, v)
	}
	if n := b.Nested(name); n != nil && hasSensitive(&n.Block) {
		return markEach(n.Nesting, v, func(v cty.Value) cty.Value { return markBlock(&n.Block, v) })
	}
	return v
}

func markAttribute(a *contract.Attribute, v cty.Value) cty.Value {
	switch {
	case isSensitive(a):
		return v.Mark(contract.Sensitive)
	case a.Nested == nil || !anySensitive(a.Nested.Attributes):
		return v
	}
	return markEach(a.Nested.Nesting, v, func(v cty.Value) cty.Value {
		return markFields(v, func(name string, v cty.Value) cty.Value {
			if inner := a.Nested.Attribute(name); inner != nil {
				return markAttribute(inner, v)
			}
			return v
		})
	})
}

// markFields applies mark to each field of an object.
func markFields(v cty.Value, mark func(string, cty.Value) cty.Value) cty.Value {
	v, marks := v.Unmark()
	if v.IsNull() || !v.IsKnown() || !v.Type().IsObjectType() {
		return v.WithMarks(marks)
	}
	fields := v.AsValueMap()
	for name, value := range fields {
		fields[name] = mark(name, value)
	}
	return cty.ObjectVal(fields).WithMarks(marks)
}

// markEach applies mark to each element, if there are several of it.
func markEach(nesting contract.Nesting, v cty.Value, mark func(cty.Value) cty.Value) cty.Value {
	if nesting == contract.NestingSingle || nesting == contract.NestingGroup {
		return mark(v)
	}
	v, marks := v.Unmark()
	if !known(v) || !v.CanIterateElements() || v.LengthInt() == 0 {
		return v.WithMarks(marks)
	}
	ty := v.Type()
	var keys []string
	var elements []cty.Value
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		elements = append(elements, mark(element))
		if ty.IsMapType() || ty.IsObjectType() {
			keys = append(keys, key.AsString())
		}
	}
	return rebuild(ty, keys, elements).WithMarks(marks)
}

// rebuild makes a value of the kind of ty of its elements.
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
