package expr

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// operation implements a function for arguments that are neither unknown nor an error.
type operation func(run *evaluation, args []ref.Val) ref.Val

// call is a call that this package implements instead of CEL.
type call struct {
	interpreter.InterpretableCall
	do operation
}

// Eval evaluates the arguments and then the operation.
func (c *call) Eval(vars interpreter.Activation) ref.Val {
	nodes := c.Args()
	args := make([]ref.Val, len(nodes))
	for i, node := range nodes {
		if args[i] = node.Eval(vars); types.IsUnknownOrError(args[i]) {
			return args[i]
		}
	}
	found, ok := vars.ResolveName(evaluationKey)
	if !ok {
		return errorValue("must be evaluated by this package")
	}
	return c.do(found.(*evaluation), args)
}

// decorator replaces calls that CEL does not implement safely: those that must notice unknown parts,
// and those whose cost is not bounded in advance. It also implements the calls of the library.
func decorator(library map[string]libraryFunction) interpreter.InterpretableDecorator {
	callFunction := callLibrary(library)
	return func(i interpreter.Interpretable) (interpreter.Interpretable, error) {
		c, ok := i.(interpreter.InterpretableCall)
		if !ok {
			return i, nil
		}
		if do := lazyOf(c.Function()); do != nil {
			list, ok := c.Args()[0].(interpreter.InterpretableConstructor)
			if !ok {
				return nil, fmt.Errorf("%s has no list of arguments", c.Function())
			}
			return &lazyCall{c, list.InitVals(), do}, nil
		}
		if c.Function() == libraryCall {
			return &call{c, callFunction}, nil
		}
		if do := operationOf(c.Function()); do != nil {
			return &call{c, do}, nil
		}
		return i, nil
	}
}

func operationOf(function string) operation {
	switch function {
	case operators.Add:
		return add
	case operators.Subtract:
		return arithmetic(func(a, b ref.Val) ref.Val { return a.(traits.Subtractor).Subtract(b) }, traits.SubtractorType)
	case operators.Multiply:
		return arithmetic(func(a, b ref.Val) ref.Val { return a.(traits.Multiplier).Multiply(b) }, traits.MultiplierType)
	case operators.Divide:
		return arithmetic(func(a, b ref.Val) ref.Val { return a.(traits.Divider).Divide(b) }, traits.DividerType)
	case operators.Equals:
		return func(run *evaluation, args []ref.Val) ref.Val { return equal(args[0], args[1], &run.remaining) }
	case operators.NotEquals:
		return func(run *evaluation, args []ref.Val) ref.Val {
			same := equal(args[0], args[1], &run.remaining)
			if known, ok := same.(types.Bool); ok {
				return !known
			}
			return same
		}
	case operators.In, operators.OldIn:
		return func(run *evaluation, args []ref.Val) ref.Val { return containsValue(args[1], args[0], &run.remaining) }
	case guardKnown:
		return func(run *evaluation, args []ref.Val) ref.Val { return run.visitAll(args[0]) }
	case guardAllPairs:
		return guardPairs
	case guardRegexInput:
		return checkRegexInput
	case guardLength:
		return checkLength
	case guardFormat:
		return checkFormat
	case testHas:
		return hasField
	case joinStrings:
		return join
	case replaceString:
		return replace
	case lookupKey:
		return lookupIn
	case lengthOf:
		return length
	case providerCall:
		return callProvider
	}
	return nil
}

// mixedNumbers converts an int to a double if the other operand is a double. Whether a provider's
// number is whole depends on its value, and an expression must not fail when 2 becomes 2.5.
func mixedNumbers(args []ref.Val) (ref.Val, ref.Val) {
	a, b := args[0], args[1]
	if i, ok := a.(types.Int); ok && b.Type() == types.DoubleType {
		return types.Double(i), b
	}
	if i, ok := b.(types.Int); ok && a.Type() == types.DoubleType {
		return a, types.Double(i)
	}
	return a, b
}

func arithmetic(do func(a, b ref.Val) ref.Val, trait int) operation {
	return func(_ *evaluation, args []ref.Val) ref.Val {
		a, b := mixedNumbers(args)
		if !a.Type().HasTrait(trait) {
			return types.MaybeNoSuchOverloadErr(a)
		}
		return do(a, b)
	}
}

// add limits the size of results, so that text and lists cannot double until memory is exhausted.
func add(run *evaluation, args []ref.Val) ref.Val {
	a, b := mixedNumbers(args)
	switch x := a.(type) {
	case types.String:
		if y, ok := b.(types.String); ok {
			run.remaining.spend(1, len(x)+len(y))
			if len(x)+len(y) > maxBytes {
				return errorValue(tooLarge)
			}
		}
	case types.Bytes:
		if y, ok := b.(types.Bytes); ok {
			run.remaining.spend(1, len(x)+len(y))
			if len(x)+len(y) > maxBytes {
				return errorValue(tooLarge)
			}
		}
	case traits.Lister:
		if y, ok := b.(traits.Lister); ok && x.Size().(types.Int)+y.Size().(types.Int) > maxNodes {
			return errorValue(tooLarge)
		}
	}
	if adder, ok := a.(traits.Adder); ok {
		return adder.Add(b)
	}
	return types.MaybeNoSuchOverloadErr(a)
}

// visitAll visits all parts of a value before a function gets it that would not notice unknown
// parts or its size. It also records the marks of all parts.
func (e *evaluation) visitAll(v ref.Val) ref.Val {
	switch v := v.(type) {
	case types.String:
		e.remaining.spend(1, len(v))
		return v
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			if one := e.visitAll(it.Next()); types.IsUnknownOrError(one) {
				return one
			}
		}
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			if one := e.visitAll(v.Get(key)); types.IsUnknownOrError(one) {
				return one
			}
		}
	}
	e.remaining.spend(1, 0)
	return v
}

// guardPairs is for functions that compare each element with each.
func guardPairs(run *evaluation, args []ref.Val) ref.Val {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return args[0]
	}
	before := run.remaining.visits
	if v := run.visitAll(list); types.IsUnknownOrError(v) {
		return v
	}
	// One comparison costs as much as visiting an element.
	run.remaining.spend((before-run.remaining.visits)*int(list.Size().(types.Int)), 0)
	return list
}

func checkRegexInput(_ *evaluation, args []ref.Val) ref.Val {
	if s, ok := args[0].(types.String); ok && len(s) > maxSearched {
		return errorValue("applies a regular expression to more than %d bytes: use a shorter text", maxSearched)
	}
	return args[0]
}

func checkLength(run *evaluation, args []ref.Val) ref.Val {
	if n, ok := args[0].(types.Int); ok && n > maxNodes {
		return errorValue(tooLarge)
	} else if ok && n > 0 {
		run.remaining.spend(int(n), 0)
	}
	return args[0]
}

// checkFormat rejects formats such as %.1000000f, which would produce a megabyte of zeros.
func checkFormat(_ *evaluation, args []ref.Val) ref.Val {
	s, ok := args[0].(types.String)
	if !ok {
		return args[0]
	}
	digits := 0
	for i := range len(s) {
		switch {
		case s[i] == '.':
			digits = 0
		case !isDigit(s[i]):
			digits = -1
		case digits >= 0:
			digits++
		}
		if digits > 2 {
			return errorValue("formats a number with more than 99 decimal places")
		}
	}
	return s
}

// hasField returns whether a field exists and is not null.
func hasField(run *evaluation, args []ref.Val) ref.Val {
	name, ok := args[1].(types.String)
	if !ok {
		return errorValue("has(…): the field must be given by its name")
	}
	switch on := args[0].(type) {
	case types.Null:
		return types.False
	case *mapValue:
		v, there := on.get(string(name))
		if !there {
			return types.False
		}
		v, marks := v.Unmark()
		run.addMarks(marks)
		switch {
		case v.IsKnown():
			return types.Bool(!v.IsNull())
		case v.Range().DefinitelyNotNull():
			return types.True
		}
		return run.unknown
	case traits.Mapper:
		v, there := on.Find(name)
		return types.Bool(there && v != types.NullValue)
	}
	return errorValue("has(…): got a %s, want an object or a map", args[0].Type().TypeName())
}

func join(run *evaluation, args []ref.Val) ref.Val {
	list, ok := args[0].(traits.Lister)
	separator, ok2 := args[1].(types.String)
	if !ok || !ok2 {
		return errorValue("join(…): want a list of strings and a separator")
	}
	if v := run.visitAll(list); types.IsUnknownOrError(v) {
		return v
	}
	var out strings.Builder
	for it, first := list.Iterator(), true; it.HasNext() == types.True; first = false {
		s, ok := it.Next().(types.String)
		if !ok {
			return errorValue("join(…): the list has elements that are not strings: convert them with list.map(x, string(x))")
		}
		if !first {
			out.WriteString(string(separator))
		}
		out.WriteString(string(s))
		if out.Len() > maxBytes {
			return errorValue(tooLarge)
		}
	}
	return types.String(out.String())
}

func replace(run *evaluation, args []ref.Val) ref.Val {
	s, ok := args[0].(types.String)
	old, ok2 := args[1].(types.String)
	with, ok3 := args[2].(types.String)
	times, ok4 := args[3].(types.Int)
	if !ok || !ok2 || !ok3 || !ok4 {
		return errorValue("replace(…): arguments must be strings: convert them with string(x)")
	}
	n := strings.Count(string(s), string(old))
	if times >= 0 {
		n = min(n, int(times))
	}
	length := len(s) + n*(len(with)-len(old))
	if length > maxBytes {
		return errorValue(tooLarge)
	}
	run.remaining.spend(1, len(s)+length)
	return types.String(strings.Replace(string(s), string(old), string(with), n))
}
