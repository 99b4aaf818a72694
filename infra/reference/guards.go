package reference

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// What stands around arguments of functions that would not notice that a part of a list is unknown, or
// whose time or memory CEL counts only afterwards. They are put there as macros, while an
// expression is read. No expression can name them: words cannot contain an @.
const (
	guardWhole    = "@whole"    // all of it known, and not endless
	guardSquare   = "@square"   // and so short that all can be compared with all
	guardSearched = "@searched" // text for a regular expression
	guardCount    = "@count"    // the length of a new list
	guardFormat   = "@format"   // a format without absurd precision
	testHas       = "@has"
	joinStrings   = "@join"
	replaceString = "@replace"
)

// maxSearched is how long text can be that a regular expression goes through.
const maxSearched = 64 << 10

// guards are the macros, and the functions that they put into expressions. The work is done in
// operators.go, by nodes that know their evaluation; the bindings here are never called.
func guards() []cel.EnvOption {
	t := cel.TypeParamType("T")
	never := func(...ref.Val) ref.Val { return failed("cannot be called") }
	options := []cel.EnvOption{
		cel.Function(testHas, cel.Overload("atoll_has", []*cel.Type{cel.DynType, cel.StringType}, cel.BoolType, cel.FunctionBinding(never))),
		cel.Function(joinStrings, cel.Overload("atoll_join", []*cel.Type{cel.DynType, cel.StringType}, cel.StringType, cel.FunctionBinding(never))),
		cel.Function(replaceString, cel.Overload("atoll_replace",
			[]*cel.Type{cel.StringType, cel.StringType, cel.StringType, cel.IntType}, cel.StringType, cel.FunctionBinding(never))),
	}
	for _, name := range []string{guardWhole, guardSquare, guardSearched, guardCount, guardFormat} {
		options = append(options, cel.Function(name, cel.Overload("atoll_"+name[1:], []*cel.Type{t}, t, cel.FunctionBinding(never))))
	}
	return append(options, cel.Macros(
		cel.GlobalMacro("has", 1, expandHas),
		member("distinct", 0, guardSquare, ""),
		member("sort", 0, guardWhole, ""),
		member("flatten", 0, guardWhole, ""),
		member("flatten", 1, guardWhole, ""),
		member("format", 1, guardFormat, guardWhole),
		member("matches", 1, guardSearched, ""),
		function("matches", 2, "", guardSearched),
		function("jsonencode", 1, "", guardWhole),
		function("contains", 2, "sets", guardSquare),
		function("intersects", 2, "sets", guardSquare),
		function("equivalent", 2, "sets", guardSquare),
		function("range", 1, "lists", guardCount),
		renamed("greatest", "math.@max"), renamed("least", "math.@min"),
		cel.ReceiverMacro("join", 0, expandJoin), cel.ReceiverMacro("join", 1, expandJoin),
		cel.ReceiverMacro("replace", 2, expandReplace), cel.ReceiverMacro("replace", 3, expandReplace),
	))
}

// member guards what x.name(…) is called on, and its arguments.
func member(name string, count int, target, arguments string) cel.Macro {
	return cel.ReceiverMacro(name, count, func(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		return eh.NewMemberCall(name, eh.NewCall(target, on), guarded(eh, arguments, args)...), nil
	})
}

// function guards the arguments of name(…), or of space.name(…).
func function(name string, count int, space, arguments string) cel.Macro {
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

// renamed guards math.greatest(list) and math.least(list), which are macros of CEL themselves.
func renamed(name, inner string) cel.Macro {
	return cel.ReceiverMacro(name, 1, func(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		if on.Kind() != ast.IdentKind || on.AsIdent() != "math" {
			return nil, nil
		}
		return eh.NewCall(inner, guarded(eh, guardWhole, args)...), nil
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

// expandHas takes has(x.y) and, for keys that are no words, has(x["y"]).
func expandHas(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	switch e := args[0]; {
	case e.Kind() == ast.SelectKind:
		return eh.NewCall(testHas, e.AsSelect().Operand(), eh.NewLiteral(types.String(e.AsSelect().FieldName()))), nil
	case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.Index && e.AsCall().Args()[1].Kind() == ast.LiteralKind:
		return eh.NewCall(testHas, e.AsCall().Args()...), nil
	}
	return nil, eh.NewError(args[0].ID(), `has(…) asks for a part of something: has(x.y) or has(x["y"])`)
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

// costs is what functions cost beyond those that CEL's standard knows of.
type costs struct{}

// CallCost charges for what goes in and comes out; nil where CEL knows better.
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
