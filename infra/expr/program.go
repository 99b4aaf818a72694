package expr

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
	"github.com/zclconf/go-cty/cty"
)

// costLimit bounds one evaluation in CEL's cost units: an iteration of a loop costs a few.
const costLimit = 1_000_000

// interruptEvery is the number of loop iterations between two checks for an interrupt.
const interruptEvery = 100

// program is a compiled shape.
type program struct {
	shape string
	run   cel.Program
	// result is the type of the value if it is certain, and otherwise any.
	result cty.Type
}

// environment returns CEL's standard functions, its extensions, and those of this package.
func environment(library map[string]libraryFunction) []cel.EnvOption {
	options := []cel.EnvOption{
		cel.ParserRecursionLimit(4 * maxNesting), // operators count as levels, too
		cel.ParserExpressionSizeLimit(2 * maxExpression),
		cel.DefaultUTCTimeZone(true),
		ext.Strings(), ext.Lists(ext.ListsVersion(2)), ext.Sets(), ext.Math(), ext.Encoders(), ext.Bindings(), ext.TwoVarComprehensions(),
	}
	for i := range maxReferences {
		options = append(options, cel.Variable(parameter+strconv.Itoa(i), cel.DynType))
	}
	options = append(options, functions()...)
	options = append(options, libraryMacros(library)...)
	options = append(options, providerFunctions()...)
	return append(options, guards()...)
}

// compile returns the program of a shape. The position of an error is an offset in the shape.
func compile(env *cel.Env, library map[string]libraryFunction, shape string) (*program, *Error) {
	ast, issues := env.Compile(shape)
	if found := issues.Errors(); len(found) > 0 {
		return nil, &Error{Position: offset(shape, found[0].Location), Problem: explainCompileError(found[0].Message)}
	}
	run, err := env.Program(ast,
		cel.CostLimit(costLimit), cel.CostTracking(costs{}), cel.InterruptCheckFrequency(interruptEvery),
		cel.CustomDecorator(decorator(library)),
	)
	if err != nil {
		return nil, &Error{Position: -1, Problem: err.Error()}
	}
	p := &program{shape: shape, run: run, result: cty.DynamicPseudoType}
	switch ast.OutputType() {
	case cel.StringType:
		p.result = cty.String
	case cel.BoolType:
		p.result = cty.Bool
	case cel.IntType, cel.UintType, cel.DoubleType:
		p.result = cty.Number
	}
	return p, nil
}

// offset converts CEL's line and column to an offset in bytes.
func offset(text string, location common.Location) int {
	at := 0
	for range location.Line() - 1 {
		next := strings.IndexByte(text[at:], '\n')
		if next < 0 {
			return at
		}
		at += next + 1
	}
	for range location.Column() {
		_, size := utf8.DecodeRuneInString(text[at:])
		at += size
	}
	return at
}

// explainCompileError rewrites CEL's message for the most common mistakes.
func explainCompileError(message string) string {
	if name, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
		name, _, _ = strings.Cut(name, "'")
		return name + ` is neither a variable nor a function: write TYPE["name"] for an object, and "…" for text`
	}
	first, _, _ := strings.Cut(message, "\n")
	first, _, _ = strings.Cut(first, " expecting ")
	return strings.ReplaceAll(first, "'<EOF>'", "the end of the expression")
}

// evaluationKey is the name under which operators find the current evaluation. No expression can
// use it.
const evaluationKey = "#evaluation"

// evaluation is one run of a program: its inputs, and the state that it accumulates.
type evaluation struct {
	expression *expression
	from       Scope
	values     []any // values of the parameters that were resolved
	marks      cty.ValueMarks
	unknown    *types.Unknown
	lookupErr  error     // first error of Lookup
	steps      int       // loop iterations
	remaining  workLimit // work that CEL's own cost does not include
}

// ResolveName returns the value of a parameter.
func (e *evaluation) ResolveName(name string) (any, bool) {
	if name == "#interrupted" { // CEL's name for the interrupt check
		e.steps++
		return true, e.from.Interrupted != nil && e.steps%interruptEvery == 0 && e.from.Interrupted()
	}
	if name == evaluationKey {
		return e, true
	}
	digits, ok := strings.CutPrefix(name, parameter)
	if !ok {
		return nil, false
	}
	i, err := strconv.Atoi(digits)
	if err != nil || i >= len(e.expression.targets) {
		return nil, false
	}
	if e.values[i] == nil {
		e.values[i] = e.lookup(e.expression.targets[i])
	}
	return e.values[i], true
}

// Parent is nil: there are no other names.
func (e *evaluation) Parent() interpreter.Activation { return nil }

func (e *evaluation) lookup(ref Ref) any {
	v, err := e.from.Lookup(ref)
	if err != nil {
		if e.lookupErr == nil {
			e.lookupErr = err
		}
		return types.WrapErr(err)
	}
	return e.toCEL(v, &valuePath{name: ref.local(), public: true})
}

// addMarks records the marks of a value that was read. The result gets all of them.
func (e *evaluation) addMarks(marks cty.ValueMarks) {
	if len(marks) == 0 {
		return
	}
	if e.marks == nil {
		e.marks = cty.ValueMarks{}
	}
	for mark := range marks {
		e.marks[mark] = struct{}{}
	}
}

// addAllMarks records the marks of everything that the expression refers to. An unknown value ends
// an evaluation before it may have read a sensitive one. The result must not become sensitive only
// when it is known.
func (e *evaluation) addAllMarks() {
	for _, use := range e.expression.references {
		alone := expression{parsedExpression: parsedExpression{references: []Reference{use}}}
		if v, err := alone.traverse(e.from); err == nil {
			_, marks := v.UnmarkDeep()
			e.addMarks(marks)
		}
	}
}

// value evaluates an expression.
func (l *Language) value(e *expression, from Scope) (cty.Value, *Error) {
	if e.traversal {
		return e.traverse(from)
	}
	p, err := l.program(e.shape)
	if err != nil {
		err.Expression = e.text
		return cty.NilVal, err
	}
	run := &evaluation{expression: e, from: from, values: make([]any, len(e.targets)), unknown: types.NewUnknown(0, nil),
		remaining: workLimit{maxVisits, maxText}}
	out, _, failure := p.run.Eval(run)
	if failure != nil {
		return cty.NilVal, run.explain(failure)
	}
	if types.IsUnknown(out) {
		run.addAllMarks()
		v := cty.UnknownVal(p.result)
		if p.result != cty.DynamicPseudoType {
			v = v.RefineNotNull() // functions never return null
		}
		return v.WithMarks(run.marks), nil
	}
	b := sizeLimit{nodes: maxNodes, bytes: maxBytes}
	v, problem := b.result(out)
	if problem != "" {
		return cty.NilVal, run.error(problem)
	}
	return v.WithMarks(run.marks), nil
}

// error returns an error about the whole expression. problem must not quote values.
func (e *evaluation) error(problem string) *Error {
	return &Error{Expression: e.expression.text, Position: -1, Problem: problem}
}

// explain turns CEL's error into an Error. CEL likes to quote values that it could not convert, so
// its text is dropped if a secret could be in it.
func (e *evaluation) explain(failure error) *Error {
	var cancelled interpreter.EvalCancelledError
	switch {
	case e.lookupErr != nil && errors.Is(failure, e.lookupErr):
		out := e.error(e.lookupErr.Error())
		out.Cause = e.lookupErr
		return out
	case errors.As(failure, &cancelled):
		return e.error(tooMuch)
	case strings.Contains(failure.Error(), "operation interrupted"):
		return e.error("the evaluation was interrupted")
	}
	var ours *problem
	isOurs := errors.As(failure, &ours)
	switch {
	case isOurs && (ours.public || len(e.marks) == 0):
		return e.error(ours.text)
	case len(e.marks) > 0:
		return e.error("failed; details are hidden because a sensitive value is involved: try the expression with a value that is not sensitive")
	}
	message, _, _ := strings.Cut(failure.Error(), "\n")
	switch {
	case strings.HasPrefix(message, "index out of bounds: "):
		message = "list index [" + strings.TrimPrefix(message, "index out of bounds: ") + "] is out of range"
	case strings.Contains(message, "no such overload"):
		message = "an operator or function does not support these types (" + message + "): convert them, as in string(x), int(x) or double(x)"
	}
	return e.error(message)
}

// problem is an error text of this package. A public one contains neither values nor names that
// come from values, so it can be shown even if a sensitive value is involved.
type problem struct {
	text   string
	public bool
}

func (p *problem) Error() string { return p.text }
