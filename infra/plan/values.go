package plan

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// level is what a block and an object that is an attribute have in common.
type level struct {
	attributes []contract.Attribute
	blocks     []contract.NestedBlock
}

func blockLevel(b *contract.Block) level   { return level{b.Attributes, b.Blocks} }
func objectLevel(o *contract.Object) level { return level{attributes: o.Attributes} }

// member is an attribute of an object that may be null or unknown: so is the attribute then.
// The type is only needed for that.
func member(object cty.Value, name string, kind func() cty.Type) cty.Value {
	switch {
	case !object.IsKnown():
		return cty.UnknownVal(kind())
	case object.IsNull():
		return cty.NullVal(kind())
	}
	return object.GetAttr(name)
}

func attributeOf(object cty.Value, a *contract.Attribute) cty.Value {
	return member(object, a.Name, func() cty.Type { return a.Type })
}

func blockOf(object cty.Value, n *contract.NestedBlock) cty.Value {
	return member(object, n.Name, n.ImpliedType)
}

// element is what is under a key, if there is something. Lists can be tuples, and maps objects.
func element(v, key cty.Value) (cty.Value, bool) {
	if v.IsNull() || !v.IsKnown() {
		return cty.NilVal, false
	}
	if v.Type().IsObjectType() {
		name := key.AsString()
		if !v.Type().HasAttribute(name) {
			return cty.NilVal, false
		}
		return v.GetAttr(name), true
	}
	if !v.HasIndex(key).True() {
		return cty.NilVal, false
	}
	return v.Index(key), true
}

// length is how many elements there are; none if null.
func length(v cty.Value) int {
	switch {
	case v.IsNull():
		return 0
	case v.Type().IsObjectType():
		return len(v.Type().AttributeTypes())
	}
	return v.LengthInt()
}

// like makes a collection of the same sort as the one given, which is not empty and has these keys.
func like(v cty.Value, keys, elements []cty.Value) cty.Value {
	ty := v.Type()
	switch {
	case ty.IsTupleType():
		return cty.TupleVal(elements)
	case ty.IsListType():
		return cty.ListVal(elements)
	case ty.IsSetType():
		return cty.SetVal(elements)
	}
	named := make(map[string]cty.Value, len(keys))
	for i, k := range keys {
		named[k.AsString()] = elements[i]
	}
	if ty.IsObjectType() {
		return cty.ObjectVal(named)
	}
	return cty.MapVal(named)
}

// same tells whether two values are the same, if it does not matter what is known of the unknown.
func same(a, b cty.Value) bool {
	if a.RawEquals(b) {
		return true
	}
	if a.IsWhollyKnown() || b.IsWhollyKnown() {
		return false
	}
	return unrefined(a).RawEquals(unrefined(b))
}

// equal tells whether nothing changes: a planned value is the one that there was, and known.
func equal(planned, before cty.Value) bool {
	if planned.RawEquals(before) {
		return planned.IsWhollyKnown()
	}
	is := planned.Equals(before) // which takes several times as long
	return is.IsKnown() && is.True()
}

func unrefined(v cty.Value) cty.Value {
	out, err := cty.Transform(v, func(_ cty.Path, v cty.Value) (cty.Value, error) {
		if !v.IsKnown() {
			return cty.UnknownVal(v.Type()), nil
		}
		return v, nil
	})
	if err != nil {
		return v // the function above has no errors
	}
	return out
}

// Null is the value of a resource that is not there.
func Null(schema *contract.Schema) cty.Value { return cty.NullVal(schema.Block.ImpliedType()) }

func absent(v cty.Value) bool { return v == cty.NilVal || v.IsNull() }

// misfit tells where a value is not of the schema's type.
func misfit(schema *contract.Schema, v cty.Value) []Problem {
	var problems []Problem
	ty := schema.Block.ImpliedType()
	if v.Type().Equals(ty) {
		return nil
	}
	for _, err := range v.Type().TestConformance(ty) {
		problems = append(problems, problemOf(err))
	}
	return problems
}

func problemOf(err error) Problem {
	if at, ok := err.(cty.PathError); ok {
		return Problem{Path: at.Path, Text: at.Error()}
	}
	return Problem{Text: err.Error()}
}

// unknownsIn are the places that are not known.
func unknownsIn(v cty.Value, text string) []Problem {
	if v.IsWhollyKnown() {
		return nil
	}
	var problems []Problem
	_ = cty.Walk(v, func(path cty.Path, v cty.Value) (bool, error) { // the function has no errors
		if !v.IsKnown() {
			problems = append(problems, Problem{Path: path.Copy(), Text: text})
		}
		return true, nil
	})
	return problems
}
