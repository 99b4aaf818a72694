package schema

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// assemble returns a list, set or map of blocks; keys are those of a map. If blocks can have
// attributes of dynamic type, their types may differ: then a list becomes a tuple and a map an
// object. There is no such type for sets.
func assemble(n *providerapi.NestedBlock, keys []string, elements []cty.Value) cty.Value {
	free := n.ImpliedType() == cty.DynamicPseudoType
	if n.Nesting == providerapi.NestingMap {
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
	case n.Nesting == providerapi.NestingSet && len(elements) == 0:
		return cty.SetValEmpty(n.Block.ImpliedType())
	case n.Nesting == providerapi.NestingSet:
		return cty.SetVal(elements)
	case len(elements) == 0:
		return cty.ListValEmpty(n.Block.ImpliedType())
	}
	return cty.ListVal(elements)
}

// blocks decodes all blocks of one name.
func (r *reader) blocks(at *field.Path, n *providerapi.NestedBlock, given any) cty.Value {
	if text, ok := given.(string); ok && HasExpression(text) {
		v, ok := r.evaluated(at, text)
		if !ok {
			return n.Absent()
		}
		return r.blocksOf(at, n, v)
	}
	if given == nil {
		r.count(at, n, 0)
		return n.Absent()
	}
	var keys []string
	var items []any
	var places []*field.Path
	object, isObject := given.(map[string]any)
	list, isList := given.([]any)
	single := n.Nesting == providerapi.NestingSingle || n.Nesting == providerapi.NestingGroup
	switch {
	case isObject && single:
		return r.block(at, &n.Block, object)
	case isList && single && len(list) == 1:
		// Older provider SDKs had a list where newer ones have a single block.
		return r.oneBlock(at.Index(0), n, list[0])
	case isObject && n.Nesting == providerapi.NestingMap:
		for _, key := range sortedKeys(object) {
			keys, items, places = append(keys, key), append(items, object[key]), append(places, at.Key(key))
		}
	case isObject:
		// A single block, whatever the limit: the provider's next version may change it.
		items, places = []any{given}, []*field.Path{at}
	case isList && (n.Nesting == providerapi.NestingList || n.Nesting == providerapi.NestingSet):
		for i, item := range list {
			items, places = append(items, item), append(places, at.Index(i))
		}
	default:
		r.addError(typeError(at, given, "must be "+blockForm(n), false))
		return n.Absent()
	}
	r.count(at, n, len(items))
	elements := make([]cty.Value, len(items))
	for i, item := range items {
		elements[i] = r.oneBlock(places[i], n, item)
	}
	return r.assemble(at, n, keys, elements)
}

func (r *reader) oneBlock(at *field.Path, n *providerapi.NestedBlock, given any) cty.Value {
	if text, ok := given.(string); ok && HasExpression(text) {
		if v, ok := r.evaluated(at, text); ok {
			return r.blockOf(at, &n.Block, v)
		}
		return n.Block.Empty()
	}
	object, ok := given.(map[string]any)
	if !ok {
		r.addError(typeError(at, given, "must be an object", false))
		return n.Block.Empty()
	}
	return r.block(at, &n.Block, object)
}

// assemble reports sets whose blocks differ in type, which cty cannot represent.
func (r *reader) assemble(at *field.Path, n *providerapi.NestedBlock, keys []string, elements []cty.Value) cty.Value {
	if n.Nesting == providerapi.NestingSet && !cty.CanSetVal(elements) {
		r.addError(field.Forbidden(at, "all of these blocks must have values of the same types"))
		return n.Absent()
	}
	return assemble(n, keys, elements)
}

// count reports too few or too many blocks.
func (r *reader) count(at *field.Path, n *providerapi.NestedBlock, there int) {
	switch {
	case there == 0 && n.Min > 0 && !r.checks.Partial:
		r.addError(field.Required(at, fmt.Sprintf("the provider requires at least %d", n.Min)))
	case int64(there) < n.Min && !r.checks.Partial:
		r.addError(field.TooFew(at, there, int(n.Min)))
	case n.Max > 0 && int64(there) > n.Max:
		r.addError(field.TooMany(at, there, int(n.Max)))
	}
}

func blockForm(n *providerapi.NestedBlock) string {
	switch n.Nesting {
	case providerapi.NestingMap:
		return "an object with a name for each block"
	case providerapi.NestingList, providerapi.NestingSet:
		if n.Max != 1 {
			return "a list of objects"
		}
	}
	return "an object"
}

// blocksOf converts an expression's value to blocks: an object, or a collection of them.
func (r *reader) blocksOf(at *field.Path, n *providerapi.NestedBlock, v cty.Value) cty.Value {
	v, marks := v.Unmark()
	switch {
	case !v.IsKnown():
		return cty.UnknownVal(n.ImpliedType()).WithMarks(marks)
	case v.IsNull():
		return n.Absent().WithMarks(marks)
	case n.Nesting == providerapi.NestingSingle || n.Nesting == providerapi.NestingGroup:
		return r.blockOf(at, &n.Block, v).WithMarks(marks)
	case v.Type().IsObjectType() && n.Nesting != providerapi.NestingMap:
		return r.assemble(at, n, nil, []cty.Value{r.blockOf(at, &n.Block, v)}).WithMarks(marks)
	case !v.CanIterateElements() || (v.Type().IsMapType() || v.Type().IsObjectType()) != (n.Nesting == providerapi.NestingMap):
		r.addError(field.TypeInvalid(at, v.Type().FriendlyName(), "the expression's value must be "+blockForm(n)))
		return n.Absent()
	}
	var keys []string
	var elements []cty.Value
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		place := at.Index(len(elements))
		if n.Nesting == providerapi.NestingMap {
			keys = append(keys, key.AsString())
			place = at.Key(key.AsString())
		}
		elements = append(elements, r.blockOf(place, &n.Block, element))
	}
	r.count(at, n, len(elements))
	return r.assemble(at, n, keys, elements).WithMarks(marks)
}

// blockOf converts an object to a block. Computed attributes are dropped, because the object may be
// that of another resource.
func (r *reader) blockOf(at *field.Path, b *providerapi.Block, v cty.Value) cty.Value {
	v, marks := v.Unmark()
	if !v.IsKnown() {
		return cty.UnknownVal(b.ImpliedType()).WithMarks(marks)
	}
	ty := v.Type()
	if v.IsNull() || !ty.IsObjectType() && !ty.IsMapType() {
		r.addError(field.TypeInvalid(at, ty.FriendlyName(), "the expression's value must be an object"))
		return b.Empty()
	}
	given := v.AsValueMap()
	for _, name := range sortedKeys(given) {
		if b.Attribute(name) == nil && b.Nested(name) == nil {
			r.addError(field.Forbidden(at.Child(name), unknownField(name, argumentNames(b))))
		}
	}
	values := make(map[string]cty.Value, len(b.Attributes)+len(b.Blocks))
	for i := range b.Attributes {
		a := &b.Attributes[i]
		values[a.Name] = r.attributeOf(at.Child(a.Name), a, given[a.Name])
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		values[n.Name] = n.Absent()
		if inner, ok := given[n.Name]; ok {
			values[n.Name] = r.blocksOf(at.Child(n.Name), n, inner)
		}
	}
	return cty.ObjectVal(values).WithMarks(marks)
}

func (r *reader) attributeOf(at *field.Path, a *providerapi.Attribute, v cty.Value) cty.Value {
	if v == cty.NilVal || !settable(a) {
		return cty.NullVal(a.Type)
	}
	converted, err := convert.Convert(v, withOptional(a.Type))
	if err != nil {
		r.addError(field.TypeInvalid(at, v.Type().FriendlyName(), err.Error()))
		return cty.NullVal(a.Type)
	}
	if a.Nested != nil {
		return argumentsOnly(a.Nested, converted)
	}
	return converted
}
