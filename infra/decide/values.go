package decide

import (
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// member returns an attribute of an object. It is null or unknown if the object is, and only then
// the type is needed.
func member(object cty.Value, name string, kind func() cty.Type) cty.Value {
	switch {
	case !object.IsKnown():
		return cty.UnknownVal(kind())
	case object.IsNull():
		return cty.NullVal(kind())
	}
	return object.GetAttr(name)
}

func attributeOf(object cty.Value, a *providerapi.Attribute) cty.Value {
	return member(object, a.Name, func() cty.Type { return a.Type })
}

func blockOf(object cty.Value, n *providerapi.NestedBlock) cty.Value {
	return member(object, n.Name, n.ImpliedType)
}

// element returns the element under a key, if there is one. Lists can be tuples, and maps objects.
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

// length returns the number of elements, 0 for null.
func length(v cty.Value) int {
	switch {
	case v.IsNull():
		return 0
	case v.Type().IsObjectType():
		return len(v.Type().AttributeTypes())
	}
	return v.LengthInt()
}

// collectionLike returns a collection of the same kind as v, which is not empty, with these keys
// and elements.
func collectionLike(v cty.Value, keys, elements []cty.Value) cty.Value {
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

// equalUnrefined reports whether two values are equal apart from the refinements of unknown values.
func equalUnrefined(a, b cty.Value) bool {
	if a.RawEquals(b) {
		return true
	}
	if a.IsWhollyKnown() || b.IsWhollyKnown() {
		return false
	}
	return unrefined(a).RawEquals(unrefined(b))
}

// isUnchanged reports whether a planned value is known and equals the prior value.
func isUnchanged(planned, before cty.Value) bool {
	if planned.RawEquals(before) {
		return planned.IsWhollyKnown()
	}
	is := planned.Equals(before) // several times slower than RawEquals
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
		return v // the function above returns no errors
	}
	return out
}

// Null returns the value of a resource that does not exist.
func Null(schema *providerapi.Schema) cty.Value { return cty.NullVal(schema.Block.ImpliedType()) }

func isAbsent(v cty.Value) bool { return v == cty.NilVal || v.IsNull() }

// conformanceProblems lists where a value does not conform to the schema's type.
func conformanceProblems(schema *providerapi.Schema, v cty.Value) []Problem {
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

// unknownProblems returns a problem for each unknown value.
func unknownProblems(v cty.Value, text string) []Problem {
	if v.IsWhollyKnown() {
		return nil
	}
	var problems []Problem
	_ = cty.Walk(v, func(path cty.Path, v cty.Value) (bool, error) { // the function returns no errors
		if !v.IsKnown() {
			problems = append(problems, Problem{Path: path.Copy(), Text: text})
		}
		return true, nil
	})
	return problems
}
