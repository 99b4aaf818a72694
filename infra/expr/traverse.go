package expr

import (
	"fmt"
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// traverse returns the value of an expression that is a single reference: the exact value, with
// numbers of any size, its own marks, and the refinements of unknown values. In all else it agrees
// with CEL.
func (e *expression) traverse(from Scope) (cty.Value, *Error) {
	use := e.references[0]
	v, done := use.attribute(from)
	if done == 0 {
		var err error
		if v, err = from.Lookup(use.Ref); err != nil {
			return cty.NilVal, &Error{Expression: e.text, Position: -1, Problem: err.Error(), Cause: err}
		}
	}
	var marks []cty.ValueMarks
	for i := done; i < len(use.Path); i++ {
		step := use.Path[i]
		bare, mark := v.Unmark()
		marks = append(marks, mark)
		var problem *problem
		where := func() string { return use.local() + pathText(use.Path[:i]) }
		if v, problem = traverseStep(bare, step, where); problem != nil {
			if sensitive(marks) && !problem.public && i > 0 {
				problem.text = where() + " has no such attribute or element; its contents are sensitive and not shown"
			}
			return cty.NilVal, &Error{Expression: e.text, Position: -1, Problem: problem.text}
		}
	}
	if ty := v.Type(); ty.IsCapsuleType() {
		return cty.NilVal, &Error{Expression: e.text, Position: -1, Problem: "has type " + ty.FriendlyName() + ", which expressions do not support"}
	}
	return v.WithMarks(marks...), nil
}

// attribute returns the value of the path's first step if the scope has it by itself, and the
// number of steps that are done.
func (r Reference) attribute(from Scope) (v cty.Value, done int) {
	if from.Attribute == nil || len(r.Path) == 0 {
		return cty.NilVal, 0
	}
	name, _, named := stepKey(r.Path[0])
	if !named {
		return cty.NilVal, 0
	}
	v, found := from.Attribute(r.Ref, name)
	if !found {
		return cty.NilVal, 0
	}
	return v, 1
}

// traverseStep follows one step of a path from a value without marks of its own.
func traverseStep(v cty.Value, step cty.PathStep, where func() string) (cty.Value, *problem) {
	ty := v.Type()
	switch {
	case !v.IsKnown() && ty == cty.DynamicPseudoType:
		return cty.DynamicVal, nil
	case v.IsKnown() && v.IsNull():
		return cty.NilVal, &problem{where() + " is null, so it has no attributes: test it with has(…)", true}
	}
	name, index, named := stepKey(step)
	switch {
	case named && ty.IsObjectType():
		if !ty.HasAttribute(name) {
			return cty.NilVal, missing(where(), name, (&mapValue{value: v}).keys(), false)
		}
		return v.GetAttr(name), nil
	case named && ty.IsMapType():
		key := cty.StringVal(name)
		if v.IsKnown() && !v.HasIndex(key).True() {
			return cty.NilVal, missing(where(), name, (&mapValue{value: v}).keys(), false)
		}
		return v.Index(key), nil
	case !named && ty.IsTupleType():
		if index < ty.Length() {
			return v.Index(cty.NumberIntVal(int64(index))), nil
		}
		return cty.NilVal, &problem{fmt.Sprintf("%s has %d elements, so index [%d] is out of range", where(), ty.Length(), index), true}
	case !named && (ty.IsListType() || ty.IsSetType()):
		if !v.IsKnown() || ty.IsSetType() && !v.IsWhollyKnown() {
			return cty.UnknownVal(ty.ElementType()), nil
		}
		if elements := v.LengthInt(); index >= elements {
			return cty.NilVal, &problem{fmt.Sprintf("%s has %d elements, so index [%d] is out of range", where(), elements, index), true}
		}
		if ty.IsSetType() {
			return v.AsValueSlice()[index], nil
		}
		return v.Index(cty.NumberIntVal(int64(index))), nil
	case named:
		return cty.NilVal, &problem{fmt.Sprintf("%s is %s, which has no %q", where(), describe(ty), name), true}
	}
	return cty.NilVal, &problem{fmt.Sprintf("%s is %s, which has no [%d]", where(), describe(ty), index), true}
}

// stepKey returns the name or the index of a step.
func stepKey(step cty.PathStep) (name string, index int, named bool) {
	switch s := step.(type) {
	case cty.GetAttrStep:
		return s.Name, 0, true
	case cty.IndexStep:
		if s.Key.Type() == cty.String {
			return s.Key.AsString(), 0, true
		}
		i, _ := s.Key.AsBigFloat().Int64()
		return "", int(i), false
	}
	return "", 0, true
}

func sensitive(marks []cty.ValueMarks) bool {
	return slices.ContainsFunc(marks, func(m cty.ValueMarks) bool { return len(m) > 0 })
}
