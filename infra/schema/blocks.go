package schema

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/atoll-dev/atoll/infra/contract"
)

// assemble makes a list, set or map of blocks; keys are those of a map. Where blocks may have attributes of any type, a list is
// a tuple and a map an object, because no two elements need be of one type. A set cannot help it.
func assemble(n *contract.NestedBlock, keys []string, elements []cty.Value) cty.Value {
	free := n.ImpliedType() == cty.DynamicPseudoType
	if n.Nesting == contract.NestingMap {
		entries := make(map[string]cty.Value, len(keys))
		for i, key := range keys {
			entries[key] = elements[i]
		}
		switch {
		case free:
			return cty.ObjectVal(entries)
		case len(entries) == 0:
			return cty.MapValEmpty(n.Block.ImpliedType())
		}
		return cty.MapVal(entries)
	}
	switch {
	case free:
		return cty.TupleVal(elements)
	case n.Nesting == contract.NestingSet && len(elements) == 0:
		return cty.SetValEmpty(n.Block.ImpliedType())
	case n.Nesting == contract.NestingSet:
		return cty.SetVal(elements)
	case len(elements) == 0:
		return cty.ListValEmpty(n.Block.ImpliedType())
	}
	return cty.ListVal(elements)
}

// blocks reads all blocks of one name.
func (r *reader) blocks(at *field.Path, n *contract.NestedBlock, given any) cty.Value {
	if text, ok := given.(string); ok && HasExpression(text) {
		v, ok := r.evaluated(at, text)
		if !ok {
			return n.None()
		}
		return r.blocksOf(at, n, v)
	}
	if given == nil {
		r.count(at, n, 0)
		return n.None()
	}
	var keys []string
	var items []any
	var places []*field.Path
	object, isObject := given.(map[string]any)
	list, isList := given.([]any)
	single := n.Nesting == contract.NestingSingle || n.Nesting == contract.NestingGroup
	switch {
	case isObject && single:
		return r.block(at, &n.Block, object)
	case isList && single && len(list) == 1:
		// Older libraries of providers had a list where newer ones have a single block.
		return r.oneBlock(at.Index(0), n, list[0])
	case isObject && n.Nesting == contract.NestingMap:
		for _, key := range sortedKeys(object) {
			keys, items, places = append(keys, key), append(items, object[key]), append(places, at.Key(key))
		}
	case isObject:
		// One block, however many there could be: a provider's next version may allow more, or fewer.
		items, places = []any{given}, []*field.Path{at}
	case isList && (n.Nesting == contract.NestingList || n.Nesting == contract.NestingSet):
		for i, item := range list {
			items, places = append(items, item), append(places, at.Index(i))
		}
	default:
		r.complain(mistyped(at, given, "must be "+blockForm(n), false))
		return n.None()
	}
	r.count(at, n, len(items))
	elements := make([]cty.Value, len(items))
	for i, item := range items {
		elements[i] = r.oneBlock(places[i], n, item)
	}
	return r.assemble(at, n, keys, elements)
}

func (r *reader) oneBlock(at *field.Path, n *contract.NestedBlock, given any) cty.Value {
	if text, ok := given.(string); ok && HasExpression(text) {
		if v, ok := r.evaluated(at, text); ok {
			return r.blockOf(at, &n.Block, v)
		}
		return n.Block.Empty()
	}
	object, ok := given.(map[string]any)
	if !ok {
		r.complain(mistyped(at, given, "must be an object", false))
		return n.Block.Empty()
	}
	return r.block(at, &n.Block, object)
}

// assemble complains about sets whose blocks differ in type, which no value of cty can be.
func (r *reader) assemble(at *field.Path, n *contract.NestedBlock, keys []string, elements []cty.Value) cty.Value {
	if n.Nesting == contract.NestingSet && !cty.CanSetVal(elements) {
		r.complain(field.Forbidden(at, "all of these blocks must have values of the same types"))
		return n.None()
	}
	return assemble(n, keys, elements)
}

// count complains about too few blocks and too many.
func (r *reader) count(at *field.Path, n *contract.NestedBlock, there int) {
	switch {
	case there == 0 && n.Min > 0 && !r.checks.Partial:
		r.complain(field.Required(at, fmt.Sprintf("the provider needs at least %d", n.Min)))
	case int64(there) < n.Min && !r.checks.Partial:
		r.complain(field.TooFew(at, there, int(n.Min)))
	case n.Max > 0 && int64(there) > n.Max:
		r.complain(field.TooMany(at, there, int(n.Max)))
	}
}

func blockForm(n *contract.NestedBlock) string {
	switch n.Nesting {
	case contract.NestingMap:
		return "an object with a name for each block"
	case contract.NestingList, contract.NestingSet:
		if n.Max != 1 {
			return "a list of objects"
		}
	}
	return "an object"
}

// blocksOf makes blocks of what an expression gave: an object, or several.
func (r *reader) blocksOf(at *field.Path, n *contract.NestedBlock, v cty.Value) cty.Value {
	v, marks := v.Unmark()
	switch {
	case !v.IsKnown():
		return cty.UnknownVal(n.ImpliedType()).WithMarks(marks)
	case v.IsNull():
		return n.None().WithMarks(marks)
	case n.Nesting == contract.NestingSingle || n.Nesting == contract.NestingGroup:
		return r.blockOf(at, &n.Block, v).WithMarks(marks)
	case v.Type().IsObjectType() && n.Nesting != contract.NestingMap:
		return r.assemble(at, n, nil, []cty.Value{r.blockOf(at, &n.Block, v)}).WithMarks(marks)
	case !v.CanIterateElements() || (v.Type().IsMapType() || v.Type().IsObjectType()) != (n.Nesting == contract.NestingMap):
		r.complain(field.TypeInvalid(at, v.Type().FriendlyName(), "what the expression gives must be "+blockForm(n)))
		return n.None()
	}
	var keys []string
	var elements []cty.Value
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		place := at.Index(len(elements))
		if n.Nesting == contract.NestingMap {
			keys = append(keys, key.AsString())
			place = at.Key(key.AsString())
		}
		elements = append(elements, r.blockOf(place, &n.Block, element))
	}
	r.count(at, n, len(elements))
	return r.assemble(at, n, keys, elements).WithMarks(marks)
}

// blockOf makes one block of an object. What the provider computes is left out: the object may be another's.
func (r *reader) blockOf(at *field.Path, b *contract.Block, v cty.Value) cty.Value {
	v, marks := v.Unmark()
	if !v.IsKnown() {
		return cty.UnknownVal(b.ImpliedType()).WithMarks(marks)
	}
	ty := v.Type()
	if v.IsNull() || !ty.IsObjectType() && !ty.IsMapType() {
		r.complain(field.TypeInvalid(at, ty.FriendlyName(), "what the expression gives must be an object"))
		return b.Empty()
	}
	given := v.AsValueMap()
	for _, name := range sortedKeys(given) {
		if b.Attribute(name) == nil && b.Nested(name) == nil {
			r.complain(field.Forbidden(at.Child(name), unknownName(name, argumentNames(b))))
		}
	}
	values := make(map[string]cty.Value, len(b.Attributes)+len(b.Blocks))
	for i := range b.Attributes {
		a := &b.Attributes[i]
		values[a.Name] = r.attributeOf(at.Child(a.Name), a, given[a.Name])
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		values[n.Name] = n.None()
		if inner, ok := given[n.Name]; ok {
			values[n.Name] = r.blocksOf(at.Child(n.Name), n, inner)
		}
	}
	return cty.ObjectVal(values).WithMarks(marks)
}

func (r *reader) attributeOf(at *field.Path, a *contract.Attribute, v cty.Value) cty.Value {
	if v == cty.NilVal || !settable(a) {
		return cty.NullVal(a.Type)
	}
	converted, err := convert.Convert(v, withOptional(a.Type))
	if err != nil {
		r.complain(field.TypeInvalid(at, v.Type().FriendlyName(), err.Error()))
		return cty.NullVal(a.Type)
	}
	if a.Nested != nil {
		return argumentsOnly(a.Nested, converted)
	}
	return converted
}
