package expr

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	yaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// Calls that macros insert for functions that take any number of arguments. No expression can name them.
const (
	libraryCall = "@library" // @library("name", [arguments])
	lazyTry     = "@try"
	lazyCan     = "@can"
	lazyFirst   = "@coalesce"
	lookupKey   = "@lookup"
	lengthOf    = "@length"
	mergeMaps   = "@merge"
)

// libraryFunction is a function of OpenTofu with OpenTofu's implementation, or one written for it here.
type libraryFunction struct {
	function.Function
	// check returns why the arguments would make the function produce or compute too much, or "". The
	// arguments are known and have the types of the parameters. Most functions need no check: their work
	// is proportional to their arguments, which are bounded.
	check func(args []cty.Value) string
	// pairs: the function compares each element with each.
	pairs bool
}

// manyArguments stands for any number of arguments.
const manyArguments = maxExpression

// library returns OpenTofu's functions by name, except those that this package implements as operations
// because they must not look at all of their arguments.
func library() map[string]libraryFunction {
	of := func(f function.Function) libraryFunction { return libraryFunction{Function: f} }
	checked := func(f function.Function, check func([]cty.Value) string) libraryFunction {
		return libraryFunction{Function: f, check: check}
	}
	return map[string]libraryFunction{
		"abs": of(stdlib.AbsoluteFunc), "ceil": of(stdlib.CeilFunc), "floor": of(stdlib.FloorFunc), "log": of(stdlib.LogFunc), "max": of(stdlib.MaxFunc), "min": of(stdlib.MinFunc),
		"parseint": checked(stdlib.ParseIntFunc, shortText), "pow": of(stdlib.PowFunc), "signum": of(stdlib.SignumFunc), "sum": of(sumFunction()),

		"chomp": of(stdlib.ChompFunc), "endswith": of(textTest(strings.HasSuffix)), "format": checked(stdlib.FormatFunc, shortFormat), "formatlist": checked(stdlib.FormatListFunc, shortFormat),
		"indent": checked(stdlib.IndentFunc, smallIndent), "join": checked(stdlib.JoinFunc, smallJoin), "lower": of(stdlib.LowerFunc), "regex": checked(stdlib.RegexFunc, shortSearch),
		"regexall": checked(stdlib.RegexAllFunc, shortSearch), "replace": checked(replaceFunction(), smallReplacement), "split": checked(stdlib.SplitFunc, fewParts),
		"startswith": of(textTest(strings.HasPrefix)), "strcontains": of(textTest(strings.Contains)), "strrev": of(stdlib.ReverseFunc), "substr": of(stdlib.SubstrFunc),
		"title": of(stdlib.TitleFunc), "trim": of(stdlib.TrimFunc), "trimprefix": of(stdlib.TrimPrefixFunc), "trimspace": of(stdlib.TrimSpaceFunc),
		"trimsuffix": of(stdlib.TrimSuffixFunc), "upper": of(stdlib.UpperFunc),

		"alltrue": of(everyFunction(true)), "anytrue": of(everyFunction(false)), "chunklist": of(stdlib.ChunklistFunc), "coalescelist": of(stdlib.CoalesceListFunc),
		"compact": of(stdlib.CompactFunc), "distinct": {Function: stdlib.DistinctFunc, pairs: true}, "element": of(stdlib.ElementFunc), "flatten": of(stdlib.FlattenFunc),
		"index": of(indexFunction()), "keys": of(stdlib.KeysFunc), "matchkeys": {Function: matchKeysFunction(), pairs: true}, "one": of(oneFunction()),
		"range": of(stdlib.RangeFunc), "reverse": of(stdlib.ReverseListFunc), "setintersection": of(stdlib.SetIntersectionFunc), "setproduct": checked(stdlib.SetProductFunc, smallProduct),
		"setsubtract": of(stdlib.SetSubtractFunc), "setunion": of(stdlib.SetUnionFunc), "slice": of(stdlib.SliceFunc), "sort": of(stdlib.SortFunc),
		"transpose": of(transposeFunction()), "values": of(stdlib.ValuesFunc), "zipmap": of(stdlib.ZipmapFunc),

		"base64gzip": of(gzipFunction()), "csvdecode": of(stdlib.CSVDecodeFunc), "urldecode": of(urlDecodeFunction()), "urlencode": of(urlEncodeFunction()),
		"yamldecode": checked(yaml.YAMLDecodeFunc, plainYAML), "yamlencode": of(yaml.YAMLEncodeFunc),

		"formatdate": of(stdlib.FormatDateFunc), "timeadd": of(stdlib.TimeAddFunc), "timecmp": of(timeCompareFunction()),

		"base64sha256": of(hashFunction("sha256", true)), "base64sha512": of(hashFunction("sha512", true)), "md5": of(hashFunction("md5", false)), "sha1": of(hashFunction("sha1", false)),
		"sha256": of(hashFunction("sha256", false)), "sha512": of(hashFunction("sha512", false)), "uuidv5": of(uuidFunction()),

		"cidrcontains": of(cidrContainsFunction()), "cidrsubnets": of(cidrSubnetsFunction()),

		"tobool": of(stdlib.MakeToFunc(cty.Bool)), "tolist": of(stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType))), "tomap": of(stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType))),
		"tonumber": of(stdlib.MakeToFunc(cty.Number)), "toset": of(stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType))), "tostring": of(stdlib.MakeToFunc(cty.String)),
	}
}

// libraryMacros declare the functions of the library, and those that evaluate their arguments one by one.
func libraryMacros(functions map[string]libraryFunction) []cel.EnvOption {
	any, text := cel.DynType, cel.StringType
	never := cel.FunctionBinding(func(...ref.Val) ref.Val { return errorValue("cannot be called") })
	options := []cel.EnvOption{
		cel.Function(libraryCall, cel.Overload("atoll_library", []*cel.Type{text, any}, any, never)),
		cel.Function(lookupKey, cel.Overload("atoll_lookup2", []*cel.Type{any, any}, any, never), cel.Overload("atoll_lookup3", []*cel.Type{any, any, any}, any, never)),
		cel.Function(lengthOf, cel.Overload("atoll_length", []*cel.Type{any}, cel.IntType, never)),
	}
	for _, name := range []string{lazyTry, lazyCan, lazyFirst} {
		options = append(options, cel.Function(name, cel.Overload("atoll_"+name[1:], []*cel.Type{cel.ListType(any)}, any, never)))
	}
	var macros []cel.Macro
	for name := range functions {
		macros = append(macros, cel.GlobalVarArgMacro(name, func(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
			return eh.NewCall(libraryCall, eh.NewLiteral(types.String(name)), eh.NewCall(guardKnown, eh.NewList(args...))), nil
		}))
	}
	atLeast := func(name string, least, most int, expand func(eh cel.MacroExprFactory, args []ast.Expr) ast.Expr) cel.Macro {
		return cel.GlobalVarArgMacro(name, func(eh cel.MacroExprFactory, on ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
			if len(args) < least || len(args) > most {
				return nil, eh.NewError(0, fmt.Sprintf("%s(…) takes %s, got %d", name, argumentCount(least, most), len(args)))
			}
			return expand(eh, args), nil
		})
	}
	lazy := func(name string) func(cel.MacroExprFactory, []ast.Expr) ast.Expr {
		return func(eh cel.MacroExprFactory, args []ast.Expr) ast.Expr {
			for i := range args {
				args[i] = eh.NewCall("dyn", args[i])
			}
			return eh.NewCall(name, eh.NewList(args...))
		}
	}
	chain := func(operator string) func(cel.MacroExprFactory, []ast.Expr) ast.Expr {
		return func(eh cel.MacroExprFactory, args []ast.Expr) ast.Expr {
			all := eh.NewCall("dyn", args[0])
			for _, next := range args[1:] {
				all = eh.NewCall(operator, all, eh.NewCall("dyn", next))
			}
			return all
		}
	}
	return append(options, cel.Macros(append(macros,
		atLeast("try", 1, manyArguments, lazy(lazyTry)), atLeast("can", 1, 1, lazy(lazyCan)), atLeast("coalesce", 1, manyArguments, lazy(lazyFirst)),
		atLeast("concat", 1, manyArguments, chain("_+_")), atLeast("merge", 1, manyArguments, chain(mergeMaps)),
		atLeast("contains", 2, 2, func(eh cel.MacroExprFactory, args []ast.Expr) ast.Expr {
			return eh.NewCall("@in", eh.NewCall("dyn", args[1]), eh.NewCall("dyn", args[0]))
		}),
		atLeast("lookup", 2, 3, func(eh cel.MacroExprFactory, args []ast.Expr) ast.Expr { return eh.NewCall(lookupKey, args...) }),
		atLeast("length", 1, 1, func(eh cel.MacroExprFactory, args []ast.Expr) ast.Expr { return eh.NewCall(lengthOf, args...) }),
	)...))
}

func argumentCount(least, most int) string {
	switch {
	case least == most && least == 1:
		return "1 argument"
	case least == most:
		return fmt.Sprintf("%d arguments", least)
	case most < manyArguments:
		return fmt.Sprintf("%d to %d arguments", least, most)
	}
	return fmt.Sprintf("%d or more arguments", least)
}

// callLibrary calls a function of the library with known arguments, whose marks the guard has recorded.
func callLibrary(functions map[string]libraryFunction) operation {
	return func(run *evaluation, in []ref.Val) ref.Val {
		name, _ := in[0].(types.String)
		f, ok := functions[string(name)]
		list, isList := in[1].(traits.Lister)
		if !ok || !isList {
			return errorValue("cannot be called")
		}
		args, wrong := libraryArguments(f, list)
		if wrong == "" && f.check != nil {
			wrong = f.check(args)
		}
		if wrong != "" {
			return errorValue("%s(…): %s", name, wrong)
		}
		if f.pairs {
			n := 0
			for _, a := range args {
				if a.CanIterateElements() {
					n = max(n, a.LengthInt())
				}
			}
			run.remaining.spend(n*n, 0)
		}
		// The guard has charged for visiting the arguments. To sort, parse or hash them takes several
		// times as long.
		for _, a := range args {
			nodes, bytes := sizeOf(a)
			run.remaining.spend(8*nodes, 4*bytes)
		}
		out, err := f.Call(args)
		if err != nil {
			// cty's texts quote values, so they are shown only if nothing sensitive is involved.
			return types.WrapErr(&problem{text: string(name) + "(…): " + err.Error()})
		}
		nodes, bytes := sizeOf(out)
		run.remaining.spend(nodes, bytes)
		if nodes > maxNodes || bytes > maxBytes {
			return errorValue("%s(…): "+tooLarge, name)
		}
		return run.toCEL(out, &valuePath{name: string(name) + "(…)"})
	}
}

// libraryArguments converts the arguments to the types of the function's parameters, as OpenTofu does.
func libraryArguments(f libraryFunction, list traits.Lister) ([]cty.Value, string) {
	parameters, rest := f.Params(), f.VarParam()
	var args []cty.Value
	size := sizeLimit{maxNodes, maxBytes}
	for it := list.Iterator(); it.HasNext() == types.True; {
		v, problem := size.result(it.Next())
		if problem != "" {
			return nil, fmt.Sprintf("argument %d %s", len(args)+1, problem)
		}
		v, _ = v.UnmarkDeep() // the guard has recorded the marks
		parameter := rest
		if len(args) < len(parameters) {
			parameter = &parameters[len(args)]
		}
		if parameter == nil {
			return nil, fmt.Sprintf("takes %s, got %d", argumentCount(len(parameters), len(parameters)), list.Size())
		}
		if parameter.Type != cty.DynamicPseudoType {
			converted, err := convert.Convert(v, parameter.Type)
			if err != nil {
				return nil, fmt.Sprintf("argument %d (%s) must be %s, got %s", len(args)+1, parameter.Name, parameter.Type.FriendlyName(), v.Type().FriendlyName())
			}
			v = converted
		}
		if v.IsNull() && !parameter.AllowNull {
			return nil, fmt.Sprintf("argument %d (%s) must not be null", len(args)+1, parameter.Name)
		}
		args = append(args, v)
	}
	if len(args) < len(parameters) {
		most := len(parameters)
		if rest != nil {
			most = manyArguments
		}
		return nil, fmt.Sprintf("takes %s, got %d", argumentCount(len(parameters), most), len(args))
	}
	return args, ""
}

// sizeOf counts the parts of a value and the bytes of its texts, up to the limit of a result.
func sizeOf(v cty.Value) (nodes, bytes int) {
	_ = cty.Walk(v, func(_ cty.Path, part cty.Value) (bool, error) {
		nodes++
		if part.Type() == cty.String && part.IsKnown() && !part.IsNull() {
			bytes += len(part.AsString())
		}
		return nodes <= maxNodes, nil
	})
	return nodes, bytes
}

// Checks of arguments. Their texts contain no values.

// maxShort bounds texts whose processing takes more than linear time.
const maxShort = 4 << 10

func shortText(args []cty.Value) string {
	if len(args[0].AsString()) > maxShort {
		return fmt.Sprintf("the text is longer than %d bytes", maxShort)
	}
	return ""
}

func shortSearch(args []cty.Value) string {
	if len(args[0].AsString()) > maxShort || len(args[1].AsString()) > maxSearched {
		return fmt.Sprintf("applies a regular expression to more than %d bytes: use a shorter text", maxSearched)
	}
	return ""
}

// shortFormat rejects formats such as %1000000d, which would produce a megabyte of spaces.
func shortFormat(args []cty.Value) string {
	digits := 0
	for _, r := range args[0].AsString() {
		if r < '0' || r > '9' {
			digits = 0
		} else if digits++; digits > 3 {
			return "a width or precision has more than 3 digits"
		}
	}
	return ""
}

func smallIndent(args []cty.Value) string {
	n, _ := args[0].AsBigFloat().Int64()
	text := args[1].AsString()
	if n > maxBytes || int64(len(text))+n*int64(strings.Count(text, "\n")) > maxBytes {
		return tooLarge
	}
	return ""
}

func smallJoin(args []cty.Value) string {
	n := 0
	for _, list := range args[1:] {
		n += list.LengthInt()
	}
	if separator := len(args[0].AsString()); separator > 0 && n > maxBytes/separator {
		return tooLarge
	}
	return ""
}

func smallReplacement(args []cty.Value) string {
	text, old, with := args[0].AsString(), args[1].AsString(), args[2].AsString()
	if isPattern(old) {
		if len(old) > maxShort || len(text) > maxSearched || (len(text)+1)*(len(with)+1) > maxBytes {
			return fmt.Sprintf("applies a regular expression to more than %d bytes, or could produce more than %d: use a shorter text", maxSearched, maxBytes)
		}
		return ""
	}
	if len(text)+strings.Count(text, old)*max(0, len(with)-len(old)) > maxBytes {
		return tooLarge
	}
	return ""
}

func fewParts(args []cty.Value) string {
	separator, text := args[0].AsString(), args[1].AsString()
	parts := strings.Count(text, separator)
	if separator == "" {
		parts = utf8.RuneCountInString(text)
	}
	if parts > maxNodes {
		return tooLarge
	}
	return ""
}

func smallProduct(args []cty.Value) string {
	n := 1
	for _, set := range args {
		if !set.CanIterateElements() {
			continue
		}
		if n *= max(1, set.LengthInt()); n > maxNodes {
			return tooLarge
		}
	}
	return ""
}

// operations that decide which of their arguments, or which part of them, they look at.

// lookupIn returns the value of a key, or the default. Other values of the map may be unknown.
func lookupIn(_ *evaluation, args []ref.Val) ref.Val {
	m, ok := args[0].(traits.Mapper)
	if _, isText := args[1].(types.String); !ok || !isText {
		return errorValue("lookup(…): want a map, a key and a default")
	}
	if v, found := m.Find(args[1]); found {
		return v
	}
	if len(args) < 3 {
		return errorValue("lookup(…): the map has no such key, and there is no default")
	}
	return args[2]
}

// length returns the number of elements of a collection, or of characters as a reader counts them.
func length(run *evaluation, args []ref.Val) ref.Val {
	switch v := args[0].(type) {
	case types.String:
		run.remaining.spend(1, 8*len(v)) // it looks up the properties of each character
		n, err := stdlib.Strlen(cty.StringVal(string(v)))
		if err != nil {
			return errorValue("length(…): cannot count this text")
		}
		return toNumber(n.AsBigFloat(), &valuePath{name: "length(…)"})
	case traits.Sizer:
		return v.Size()
	}
	return errorValue("length(…): want a text, a list or a map, got %s", args[0].Type().TypeName())
}

// lazyCall evaluates its arguments one by one, and not those after the one that it returns.
type lazyCall struct {
	interpreter.InterpretableCall
	arguments []interpreter.Interpretable
	do        func(run *evaluation, next func() (ref.Val, bool)) ref.Val
}

func (c *lazyCall) Eval(vars interpreter.Activation) ref.Val {
	found, ok := vars.ResolveName(evaluationKey)
	if !ok {
		return errorValue("must be evaluated by this package")
	}
	i := 0
	return c.do(found.(*evaluation), func() (ref.Val, bool) {
		if i == len(c.arguments) {
			return nil, false
		}
		i++
		return c.arguments[i-1].Eval(vars), true
	})
}

func lazyOf(function string) func(run *evaluation, next func() (ref.Val, bool)) ref.Val {
	switch function {
	case lazyTry:
		return tryEach
	case lazyCan:
		return func(run *evaluation, next func() (ref.Val, bool)) ref.Val {
			v, _ := next()
			if types.IsUnknown(v) || run.isLookupError(v) {
				return v
			}
			return types.Bool(!types.IsError(v))
		}
	case lazyFirst:
		return firstNonEmpty
	}
	return nil
}

// tryEach returns the first argument that can be evaluated. An object that does not exist, or cannot be
// read, is no reason to use the next one: in OpenTofu that is an error in any expression, too.
func tryEach(run *evaluation, next func() (ref.Val, bool)) ref.Val {
	var last ref.Val
	for v, more := next(); more; v, more = next() {
		if !types.IsError(v) || run.isLookupError(v) {
			return v
		}
		last = v
	}
	return last
}

// firstNonEmpty returns the first argument that is neither null nor empty text.
func firstNonEmpty(_ *evaluation, next func() (ref.Val, bool)) ref.Val {
	for v, more := next(); more; v, more = next() {
		if v != types.NullValue && v != types.String("") {
			return v
		}
	}
	return errorValue("coalesce(…): all arguments are null or empty")
}

// isLookupError reports whether a value is the error of the caller's Lookup.
func (e *evaluation) isLookupError(v ref.Val) bool {
	err, ok := v.(*types.Err)
	return ok && e.lookupErr != nil && errors.Is(err, e.lookupErr)
}
