package interpret

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
)

// costLimit bounds one evaluation, in CEL cost units. It is the limit of Kubernetes for an
// admission expression. A status of a thousand clusters fits several times.
const costLimit = 1_000_000

// The variables of expressions.
const (
	varSelf    = "self"
	varMembers = "members"
)

// compiler compiles expressions and collects their errors.
type compiler struct {
	plain, overMembers *cel.Env
	errs               []error
}

// newCompiler returns a compiler for CEL with optional fields (self.?status.?phase), the extensions
// for strings, lists, sets and math, and the reduce functions sum, least and greatest.
func newCompiler() (*compiler, error) {
	plain, err := cel.NewEnv(
		cel.Variable(varSelf, cel.MapType(cel.StringType, cel.DynType)),
		cel.OptionalTypes(), ext.Strings(), ext.Lists(), ext.Sets(), ext.Math(),
		cel.CrossTypeNumericComparisons(true),
		reduce("sum", add), reduce("least", least), reduce("greatest", greatest),
	)
	if err != nil {
		return nil, fmt.Errorf("create the CEL environment: %w", err)
	}
	overMembers, err := plain.Extend(cel.Variable(varMembers, cel.ListType(cel.MapType(cel.StringType, cel.DynType))))
	if err != nil {
		return nil, fmt.Errorf("create the CEL environment: %w", err)
	}
	return &compiler{plain: plain, overMembers: overMembers}, nil
}

// reduce declares a function that reduces a list to one value: [1, 2].sum().
func reduce(name string, step func(a, b ref.Val) ref.Val) cel.EnvOption {
	return cel.Function(name, cel.MemberOverload("list_"+name, []*cel.Type{cel.ListType(cel.DynType)}, cel.DynType,
		cel.UnaryBinding(func(value ref.Val) ref.Val {
			list, ok := value.(traits.Lister)
			if !ok {
				return types.MaybeNoSuchOverloadErr(value)
			}
			var out ref.Val
			for it := list.Iterator(); it.HasNext() == types.True; {
				if next := it.Next(); out == nil {
					out = next
				} else {
					out = step(out, next)
				}
			}
			if out == nil {
				return types.IntZero // an empty list
			}
			return out
		})))
}

func add(a, b ref.Val) ref.Val {
	if adder, ok := a.(traits.Adder); ok {
		return adder.Add(b)
	}
	return types.MaybeNoSuchOverloadErr(a)
}

func least(a, b ref.Val) ref.Val { return pick(a, b, types.IntNegOne) }

func greatest(a, b ref.Val) ref.Val { return pick(a, b, types.IntOne) }

// pick returns a if it compares to b as wanted, and otherwise b.
func pick(a, b, want ref.Val) ref.Val {
	comparer, ok := a.(traits.Comparer)
	if !ok {
		return types.MaybeNoSuchOverloadErr(a)
	}
	switch result := comparer.Compare(b); {
	case types.IsError(result):
		return result
	case result.Equal(want) == types.True:
		return a
	}
	return b
}

// An expression is compiled once and can be evaluated concurrently.
type expression struct {
	field   string
	program cel.Program
}

// Result types of expressions.
var (
	anInt    = []types.Kind{types.IntKind, types.UintKind, types.DoubleKind}
	aBool    = []types.Kind{types.BoolKind}
	aText    = []types.Kind{types.StringKind}
	aList    = []types.Kind{types.ListKind}
	aMap     = []types.Kind{types.MapKind}
	aVerdict = []types.Kind{types.StringKind, types.MapKind}
)

// compile compiles the expression of a field, whose result must have one of the given types, or any
// type if none is given. It returns nil for an empty expression, and for an invalid one after
// recording the error.
func (c *compiler) compile(env *cel.Env, field, source string, results ...types.Kind) *expression {
	if strings.TrimSpace(source) == "" {
		return nil
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		for _, e := range issues.Errors() {
			c.fail(field, fmt.Errorf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, e.Message))
		}
		return nil
	}
	out := ast.OutputType()
	ok := len(results) == 0 || out.Kind() == types.DynKind
	for _, kind := range results {
		ok = ok || out.Kind() == kind
	}
	if !ok {
		c.fail(field, fmt.Errorf("the result has type %s, want %s", cel.FormatCELType(out), names(results)))
		return nil
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		c.fail(field, err)
		return nil
	}
	return &expression{field, program}
}

func (c *compiler) fail(field string, err error) {
	c.errs = append(c.errs, fmt.Errorf("%s: %w", field, err))
}

func (c *compiler) err() error { return errors.Join(c.errs...) }

func names(kinds []types.Kind) string {
	var out []string
	for _, k := range kinds {
		switch k {
		case types.IntKind:
			out = append(out, "a number")
		case types.BoolKind:
			out = append(out, "a boolean")
		case types.StringKind:
			out = append(out, "a string")
		case types.ListKind:
			out = append(out, "a list")
		case types.MapKind:
			out = append(out, "a map")
		}
	}
	return strings.Join(out, " or ")
}

// eval returns the value as in decoded JSON: numbers are int64 or float64.
func (e *expression) eval(variables map[string]any) (any, error) {
	value, _, err := e.program.Eval(variables)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.field, err)
	}
	out, err := plainValue(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.field, err)
	}
	return out, nil
}

// plainValue converts a CEL value to a JSON value.
func plainValue(value ref.Val) (any, error) {
	switch v := value.(type) {
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if uint64(v) > math.MaxInt64 {
			return nil, fmt.Errorf("%d is too large", uint64(v))
		}
		return int64(v), nil
	case types.Double:
		return float64(v), nil
	case types.String:
		return string(v), nil
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return plainValue(v.GetValue())
	case traits.Mapper:
		return plainMap(v)
	case traits.Lister:
		out := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			item, err := plainValue(it.Next())
			if err != nil {
				return nil, err
			}
			out = append(out, item)
		}
		return out, nil
	}
	return nil, fmt.Errorf("an object cannot hold a value of type %s: convert it with string()", value.Type().TypeName())
}

func plainMap(m traits.Mapper) (any, error) {
	out := map[string]any{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("a map key has type %s, want a string", key.Type().TypeName())
		}
		value, err := plainValue(m.Get(key))
		if err != nil {
			return nil, err
		}
		out[string(name)] = value
	}
	return out, nil
}
