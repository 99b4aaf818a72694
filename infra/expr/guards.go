package expr

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// Guards are calls that macros put around the arguments of functions while an expression is parsed. They
// protect functions that would overlook an unknown part of a list, or whose time or memory CEL counts only
// afterwards. No expression can name them, because identifiers cannot contain an @.
const (
	guardKnown      = "@whole"    // wholly known and of bounded size
	guardAllPairs   = "@square"   // also short enough to compare each element with each
	guardRegexInput = "@searched" // input of a regular expression
	guardLength     = "@count"    // length of a new list
	guardFormat     = "@format"   // format string with a bounded precision
	testHas         = "@has"
	joinStrings     = "@join"
	replaceString   = "@replace"
)

// maxSearched bounds the input of a regular expression.
const maxSearched = 64 << 10

// guards returns the macros and the functions that they insert. The nodes of operators.go implement
// the functions, because they need the evaluation. The bindings here are never called.
func guards() []cel.EnvOption {
	t := cel.TypeParamType("T")
	never := func(...ref.Val) ref.Val { return errorValue("cannot be called") }
	options := []cel.EnvOption{
		cel.Function(testHas, cel.Overload("atoll_has", []*cel.Type{cel.DynType, cel.StringType}, cel.BoolType, cel.FunctionBinding(never))),
		cel.Function(joinStrings, cel.Overload("atoll_join", []*cel.Type{cel.DynType, cel.StringType}, cel.StringType, cel.FunctionBinding(never))),
		cel.Function(replaceString, cel.Overload("atoll_replace",
			[]*cel.Type{cel.StringType, cel.StringType, cel.StringType, cel.IntType}, cel.StringType, cel.FunctionBinding(never))),
	}
	for _, name := range []string{guardKnown, guardAllPairs, guardRegexInput, guardLength, guardFormat} {
		options = append(options, cel.Function(name, cel.Overload("atoll_"+name[1:], []*cel.Type{t}, t, cel.FunctionBinding(never))))
	}
	return append(options, cel.Macros(
		cel.GlobalMacro("has", 1, expandHas),
		memberMacro("distinct", 0, guardAllPairs, ""),
		memberMacro("sort", 0, guardKnown, ""),
		memberMacro("flatten", 0, guardKnown, ""),
		memberMacro("flatten", 1, guardKnown, ""),
		memberMacro("format", 1, guardFormat, guardKnown),
		memberMacro("matches", 1, guardRegexInput, ""),
		functionMacro("matches", 2, "", guardRegexInput),
		functionMacro("jsonencode", 1, "", guardKnown),
		functionMacro("contains", 2, "sets", guardAllPairs),
		functionMacro("intersects", 2, "sets", guardAllPairs),
		functionMacro("equivalent", 2, "sets", guardAllPairs),
		functionMacro("range", 1, "lists", guardLength),
		mathMacro("greatest", "math.@max"), mathMacro("least", "math.@min"),
		cel.ReceiverMacro("join", 0, expandJoin), cel.ReceiverMacro("join", 1, expandJoin),
		cel.ReceiverMacro("replace", 2, expandReplace), cel.ReceiverMacro("replace", 3, expandReplace),
	))
}

// memberMacro guards the receiver and the arguments of x.name(…).
func memberMacro(name string, count int, target, arguments string) cel.Macro {
	return cel.ReceiverMacro(name, count, func(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		return eh.NewMemberCall(name, eh.NewCall(target, on), guarded(eh, arguments, args)...), nil
	})
}

// functionMacro guards the arguments of name(…) or space.name(…).
func functionMacro(name string, count int, space, arguments string) cel.Macro {
	if space == "" {
		return cel.GlobalMacro(name, count, func(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
			return eh.NewCall(name, guarded(eh, arguments, args)...), nil
		})
	}
	return cel.ReceiverMacro(name, count, func(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		if on.Kind() != ast.IdentKind || on.AsIdent() != space {
			return nil, nil // a method of the same name
		}
		return eh.NewMemberCall(name, on, guarded(eh, arguments, args)...), nil
	})
}

// mathMacro guards math.greatest(list) and math.least(list), which are themselves macros of CEL.
func mathMacro(name, inner string) cel.Macro {
	return cel.ReceiverMacro(name, 1, func(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		if on.Kind() != ast.IdentKind || on.AsIdent() != "math" {
			return nil, nil
		}
		return eh.NewCall(inner, guarded(eh, guardKnown, args)...), nil
	})
}

func guarded(eh cel.MacroExprFactory, guard string, args []ast.Expr) []ast.Expr {
	if guard == "" {
		return args
	}
	out := make([]ast.Expr, len(args))
	for i := range args {
		out[i] = eh.NewCall(guard, args[i])
	}
	return out
}

// expandHas accepts has(x.y) and, for keys that are not identifiers, has(x["y"]).
func expandHas(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	switch e := args[0]; {
	case e.Kind() == ast.SelectKind:
		return eh.NewCall(testHas, e.AsSelect().Operand(), eh.NewLiteral(types.String(e.AsSelect().FieldName()))), nil
	case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.Index && e.AsCall().Args()[1].Kind() == ast.LiteralKind:
		return eh.NewCall(testHas, e.AsCall().Args()...), nil
	}
	return nil, eh.NewError(args[0].ID(), `has(…) takes a field or an element: write has(x.y) or has(x["y"])`)
}

func expandJoin(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	if len(args) == 0 {
		args = []ast.Expr{eh.NewLiteral(types.String(""))}
	}
	return eh.NewCall(joinStrings, on, args[0]), nil
}

func expandReplace(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	if len(args) == 2 {
		args = append(args, eh.NewLiteral(types.Int(-1)))
	}
	return eh.NewCall(replaceString, on, args[0], args[1], args[2]), nil
}

// costs estimates the cost of functions that CEL's default cost model does not know.
type costs struct{}

// CallCost charges for the size of arguments and result. It returns nil for functions that CEL
// estimates.
func (costs) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	if !isLetter(function[0]) || function == "contains" || function == "matches" || function == "size" {
		return nil
	}
	cost := uint64(1)
	for _, v := range append(args, result) {
		switch v := v.(type) {
		case types.String:
			cost += uint64(len(v)) / 10
		case types.Bytes:
			cost += uint64(len(v)) / 10
		case traits.Lister:
			cost += uint64(v.Size().(types.Int))
		}
	}
	return &cost
}
