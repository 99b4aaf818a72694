package expr

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// providerCall is the call of a provider's function: @provider(index, [arguments]). No expression can name
// it.
const providerCall = "@provider"

// providerFunctions declares the names that stand for functions of providers in a shape.
func providerFunctions() []cel.EnvOption {
	never := cel.FunctionBinding(func(...ref.Val) ref.Val { return errorValue("cannot be called") })
	var macros []cel.Macro
	for i := range maxFunctions {
		macros = append(macros, cel.GlobalVarArgMacro(functionName+strconv.Itoa(i), func(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
			return eh.NewCall(providerCall, eh.NewLiteral(types.Int(i)), eh.NewCall(guardKnown, eh.NewList(args...))), nil
		}))
	}
	return []cel.EnvOption{
		cel.Function(providerCall, cel.Overload("atoll_provider", []*cel.Type{cel.IntType, cel.DynType}, cel.DynType, never)),
		cel.Macros(macros...),
	}
}

// callProvider calls a provider's function with known arguments, whose marks the guard has recorded.
func callProvider(run *evaluation, in []ref.Val) ref.Val {
	index, _ := in[0].(types.Int)
	list, isList := in[1].(traits.Lister)
	if !isList || int(index) >= len(run.expression.functions) {
		return errorValue("cannot be called")
	}
	f := run.expression.functions[index]
	name := "provider." + f.Provider + "." + f.Name + "(…)"
	if run.from.Call == nil {
		return errorValue("%s: functions of providers cannot be called here", name)
	}
	var arguments []cty.Value
	size := sizeLimit{maxNodes, maxBytes}
	for it := list.Iterator(); it.HasNext() == types.True; {
		v, problem := size.result(it.Next())
		if problem != "" {
			return errorValue("%s: argument %d %s", name, len(arguments)+1, problem)
		}
		v, _ = v.UnmarkDeep() // the guard has recorded the marks
		arguments = append(arguments, v)
	}
	out, err := run.from.Call(f, arguments)
	var rejected *providerapi.FunctionError
	switch {
	case errors.As(err, &rejected): // it can quote values, so it is shown only if nothing sensitive is involved
		return types.WrapErr(&problem{text: name + ": " + err.Error()})
	case err != nil:
		return types.WrapErr(&problem{text: fmt.Sprintf("%s: %v", name, err), public: true})
	}
	nodes, bytes := sizeOf(out)
	run.remaining.spend(nodes, bytes)
	if nodes > maxNodes || bytes > maxBytes {
		return errorValue("%s: "+tooLarge, name)
	}
	return run.toCEL(out, &valuePath{name: name})
}
