package reference

import (
	"strings"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// operation does what a function does, with arguments that are neither unknown nor an error.
type operation func(run *evaluation, args []ref.Val) ref.Val

// call is a call that is carried out by us.
type call struct {
	interpreter.InterpretableCall
	do operation
}

// Eval evaluates the arguments, and does it.
func (c *call) Eval(vars interpreter.Activation) ref.Val {
	nodes := c.Args()
	args := make([]ref.Val, len(nodes))
	for i, node := range nodes {
		if args[i] = node.Eval(vars); types.IsUnknownOrError(args[i]) {
			return args[i]
		}
	}
	found, ok := vars.ResolveName(itself)
	if !ok {
		return failed("is not evaluated by this package")
	}
	return c.do(found.(*evaluation), args)
}

// takeOver takes over the calls that CEL's own implementation cannot be trusted with: those
// that have to notice unknown parts, and those whose cost is not bounded beforehand.
func takeOver(i interpreter.Interpretable) (interpreter.Interpretable, error) {
	c, ok := i.(interpreter.InterpretableCall)
	if !ok {
		return i, nil
	}
	if do := operationOf(c.Function()); do != nil {
		return &call{c, do}, nil
	}
	return i, nil
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
		return func(run *evaluation, args []ref.Val) ref.Val { return equal(args[0], args[1], &run.left) }
	case operators.NotEquals:
		return func(run *evaluation, args []ref.Val) ref.Val {
			same := equal(args[0], args[1], &run.left)
			if known, ok := same.(types.Bool); ok {
				return !known
			}
			return same
		}
	case operators.In, operators.OldIn:
		return func(run *evaluation, args []ref.Val) ref.Val { return within(args[1], args[0], &run.left) }
	case guardWhole:
		return func(run *evaluation, args []ref.Val) ref.Val { return run.whole(args[0]) }
	case guardSquare:
		return square
	case guardSearched:
		return searched
	case guardCount:
		return count
	case guardFormat:
		return format
	case testHas:
		return has
	case joinStrings:
		return join
	case replaceString:
		return replace
	}
	return nil
}

// numbers lets an int and a double be calculated with: whether a provider's number is whole is a matter of its
// value, and an expression must not fail when 2 becomes 2.5.
func numbers(args []ref.Val) (ref.Val, ref.Val) {
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
		a, b := numbers(args)
		if !a.Type().HasTrait(trait) {
			return types.MaybeNoSuchOverloadErr(a)
		}
		return do(a, b)
	}
}

// add adds, and does not let text and lists double until nothing is left.
func add(run *evaluation, args []ref.Val) ref.Val {
	a, b := numbers(args)
	switch x := a.(type) {
	case types.String:
		if y, ok := b.(types.String); ok {
			run.left.spend(1, len(x)+len(y))
			if len(x)+len(y) > maxBytes {
				return failed(tooLarge)
			}
		}
	case types.Bytes:
		if y, ok := b.(types.Bytes); ok {
			run.left.spend(1, len(x)+len(y))
			if len(x)+len(y) > maxBytes {
				return failed(tooLarge)
			}
		}
	case traits.Lister:
		if y, ok := b.(traits.Lister); ok && x.Size().(types.Int)+y.Size().(types.Int) > maxNodes {
			return failed(tooLarge)
		}
	}
	if adder, ok := a.(traits.Adder); ok {
		return adder.Add(b)
	}
	return types.MaybeNoSuchOverloadErr(a)
}

// whole visits all of a value, before a function is given it that would not notice that a part is
// unknown, or how large it is. Marks of all parts are noted on the way.
func (e *evaluation) whole(v ref.Val) ref.Val {
	switch v := v.(type) {
	case types.String:
		e.left.spend(1, len(v))
		return v
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			if one := e.whole(it.Next()); types.IsUnknownOrError(one) {
				return one
			}
		}
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			if one := e.whole(v.Get(key)); types.IsUnknownOrError(one) {
				return one
			}
		}
	}
	e.left.spend(1, 0)
	return v
}

// square is for functions that compare each element with each.
func square(run *evaluation, args []ref.Val) ref.Val {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return args[0]
	}
	before := run.left.visits
	if v := run.whole(list); types.IsUnknownOrError(v) {
		return v
	}
	// What one comparison costs is what there is in an element.
	run.left.spend((before-run.left.visits)*int(list.Size().(types.Int)), 0)
	return list
}

func searched(_ *evaluation, args []ref.Val) ref.Val {
	if s, ok := args[0].(types.String); ok && len(s) > maxSearched {
		return failed("searches more than %d bytes of text with a regular expression: take a part of it", maxSearched)
	}
	return args[0]
}

func count(run *evaluation, args []ref.Val) ref.Val {
	if n, ok := args[0].(types.Int); ok && n > maxNodes {
		return failed(tooLarge)
	} else if ok && n > 0 {
		run.left.spend(int(n), 0)
	}
	return args[0]
}

// format refuses %.1000000f, which would be a megabyte of zeros.
func format(_ *evaluation, args []ref.Val) ref.Val {
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
			return failed("formats a number with more than 99 digits after the point")
		}
	}
	return s
}

// has tells whether a part is there and not null.
func has(run *evaluation, args []ref.Val) ref.Val {
	name, ok := args[1].(types.String)
	if !ok {
		return failed("has(…) asks for a part by its name")
	}
	switch on := args[0].(type) {
	case types.Null:
		return types.False
	case *object:
		v, there := on.get(string(name))
		if !there {
			return types.False
		}
		v, marks := v.Unmark()
		run.touch(marks)
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
	return failed("has(…) asks for a part of an object, and this is a %s", args[0].Type().TypeName())
}

func join(run *evaluation, args []ref.Val) ref.Val {
	list, ok := args[0].(traits.Lister)
	separator, ok2 := args[1].(types.String)
	if !ok || !ok2 {
		return failed("join(…) joins a list of strings with a string")
	}
	if v := run.whole(list); types.IsUnknownOrError(v) {
		return v
	}
	var out strings.Builder
	for it, first := list.Iterator(), true; it.HasNext() == types.True; first = false {
		s, ok := it.Next().(types.String)
		if !ok {
			return failed("join(…) joins strings: use list.map(x, string(x)) first")
		}
		if !first {
			out.WriteString(string(separator))
		}
		out.WriteString(string(s))
		if out.Len() > maxBytes {
			return failed(tooLarge)
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
		return failed("replace(…) takes strings: use string(x) on what is none")
	}
	n := strings.Count(string(s), string(old))
	if times >= 0 {
		n = min(n, int(times))
	}
	length := len(s) + n*(len(with)-len(old))
	if length > maxBytes {
		return failed(tooLarge)
	}
	run.left.spend(1, len(s)+length)
	return types.String(strings.Replace(string(s), string(old), string(with), n))
}
