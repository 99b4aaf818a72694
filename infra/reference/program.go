package reference

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

// costLimit is how much one evaluation may do, in CEL's units: a step of a loop costs a few.
const costLimit = 1_000_000

// interruptEvery is after how many steps of loops it is asked whether to go on.
const interruptEvery = 100

// program is a shape, compiled.
type program struct {
	shape string
	run   cel.Program
	// result is the type of its value if that is certain, else any.
	result cty.Type
}

// environment is the language: CEL's own functions, its extensions, and ours.
func environment() []cel.EnvOption {
	options := []cel.EnvOption{
		cel.ParserRecursionLimit(4 * maxNesting), // an operator is a level, too
		cel.ParserExpressionSizeLimit(2 * maxExpression),
		cel.DefaultUTCTimeZone(true),
		ext.Strings(), ext.Lists(ext.ListsVersion(2)), ext.Sets(), ext.Math(), ext.Encoders(), ext.Bindings(), ext.TwoVarComprehensions(),
	}
	for i := range maxReferences {
		options = append(options, cel.Variable(parameter+strconv.Itoa(i), cel.DynType))
	}
	options = append(options, functions()...)
	return append(options, guards()...)
}

// compile makes the program of a shape. The position of an error is in the shape.
func compile(env *cel.Env, shape string) (*program, *Error) {
	ast, issues := env.Compile(shape)
	if found := issues.Errors(); len(found) > 0 {
		return nil, &Error{Position: offset(shape, found[0].Location), Problem: explain(found[0].Message)}
	}
	run, err := env.Program(ast,
		cel.CostLimit(costLimit), cel.CostTracking(costs{}), cel.InterruptCheckFrequency(interruptEvery),
		cel.CustomDecorator(takeOver),
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

// offset is a place that CEL gives in lines and characters, in bytes.
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

// explain says in our words what people get wrong most.
func explain(message string) string {
	if name, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
		name, _, _ = strings.Cut(name, "'")
		return name + ` is neither a variable nor a function: another object is written TYPE["name"], text in quotes`
	}
	first, _, _ := strings.Cut(message, "\n")
	first, _, _ = strings.Cut(first, " expecting ")
	return strings.ReplaceAll(first, "'<EOF>'", "the end of the expression")
}

// itself is the name under which operators find the evaluation that they are part of. No
// expression can have it.
const itself = "#evaluation"

// evaluation is one run of a program: where its values come from, and what it met.
type evaluation struct {
	expression *expression
	from       Values
	adapted    []any // what each parameter was found to be
	touched    cty.ValueMarks
	unknown    *types.Unknown
	failed     error // of Lookup
	steps      int   // of loops
	left       work  // for what CEL's own count does not see
}

// ResolveName gives the value of a parameter.
func (e *evaluation) ResolveName(name string) (any, bool) {
	if name == "#interrupted" { // CEL's name for the question
		e.steps++
		return true, e.from.Interrupted != nil && e.steps%interruptEvery == 0 && e.from.Interrupted()
	}
	if name == itself {
		return e, true
	}
	digits, ok := strings.CutPrefix(name, parameter)
	if !ok {
		return nil, false
	}
	i, err := strconv.Atoi(digits)
	if err != nil || i >= len(e.expression.heads) {
		return nil, false
	}
	if e.adapted[i] == nil {
		e.adapted[i] = e.lookup(e.expression.heads[i])
	}
	return e.adapted[i], true
}

// Parent is nil: there are no other names.
func (e *evaluation) Parent() interpreter.Activation { return nil }

func (e *evaluation) lookup(ref Ref) any {
	v, err := e.from.Lookup(ref)
	if err != nil {
		if e.failed == nil {
			e.failed = err
		}
		return types.WrapErr(err)
	}
	return e.adapt(v, &trail{name: ref.local(), public: true})
}

// touch notes that a value had marks, which the result then has.
func (e *evaluation) touch(marks cty.ValueMarks) {
	if len(marks) == 0 {
		return
	}
	if e.touched == nil {
		e.touched = cty.ValueMarks{}
	}
	for mark := range marks {
		e.touched[mark] = struct{}{}
	}
}

// touchAll notes the marks of all that the expression refers to. What is unknown ends an evaluation early, before something
// sensitive may have been looked at: the result must not become sensitive only when it is known.
func (e *evaluation) touchAll() {
	for _, use := range e.expression.uses {
		alone := expression{parsed: parsed{uses: []Reference{use}}}
		if v, err := alone.follow(e.from); err == nil {
			_, marks := v.UnmarkDeep()
			e.touch(marks)
		}
	}
}

// value evaluates an expression.
func (l *Language) value(e *expression, from Values) (cty.Value, *Error) {
	if e.plain {
		return e.follow(from)
	}
	p, err := l.program(e.shape)
	if err != nil {
		err.Expression = e.text
		return cty.NilVal, err
	}
	run := &evaluation{expression: e, from: from, adapted: make([]any, len(e.heads)), unknown: types.NewUnknown(0, nil),
		left: work{maxVisits, maxText}}
	out, _, failure := p.run.Eval(run)
	if failure != nil {
		return cty.NilVal, run.explain(failure)
	}
	if types.IsUnknown(out) {
		run.touchAll()
		v := cty.UnknownVal(p.result)
		if p.result != cty.DynamicPseudoType {
			v = v.RefineNotNull() // what a function makes is there
		}
		return v.WithMarks(run.touched), nil
	}
	b := budget{nodes: maxNodes, bytes: maxBytes}
	v, problem := b.result(out)
	if problem != "" {
		return cty.NilVal, run.error(problem)
	}
	return v.WithMarks(run.touched), nil
}

// error is a complaint of ours about the whole expression. It quotes no values.
func (e *evaluation) error(problem string) *Error {
	return &Error{Expression: e.expression.text, Position: -1, Problem: problem}
}

// explain makes an Error of what CEL said, unless a secret could stand in it: CEL likes to
// quote what it could not convert.
func (e *evaluation) explain(failure error) *Error {
	var cancelled interpreter.EvalCancelledError
	switch {
	case e.failed != nil && errors.Is(failure, e.failed):
		out := e.error(e.failed.Error())
		out.Cause = e.failed
		return out
	case errors.As(failure, &cancelled):
		return e.error(tooMuch)
	case strings.Contains(failure.Error(), "operation interrupted"):
		return e.error("was interrupted")
	}
	var ours *problem
	isOurs := errors.As(failure, &ours)
	switch {
	case isOurs && (ours.public || len(e.touched) == 0):
		return e.error(ours.text)
	case len(e.touched) > 0:
		return e.error("has no value; what went wrong is not shown, because a sensitive value is involved: try the expression on one that is not")
	}
	message, _, _ := strings.Cut(failure.Error(), "\n")
	switch {
	case strings.HasPrefix(message, "index out of bounds: "):
		message = "a list has no [" + strings.TrimPrefix(message, "index out of bounds: ") + "]: it is shorter"
	case strings.Contains(message, "no such overload"):
		message = "an operator or function does not take values of these types (" + message + "): convert them, as in string(x), int(x) or double(x)"
	}
	return e.error(message)
}

// problem is what is wrong in our own words. A public one can be shown even if something sensitive is
// involved: there are no values in it, nor names that come from values.
type problem struct {
	text   string
	public bool
}

func (p *problem) Error() string { return p.text }
