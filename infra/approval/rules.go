package approval

import (
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// ruleCost bounds the evaluation of a rule. Iterating over a hundred problems and fifty chunks costs some
// thousands.
const ruleCost = 1_000_000

// compileRule compiles a CEL expression over "plan".
func compileRule(expression string) (cel.Program, error) {
	env, err := cel.NewEnv(cel.Variable("plan", cel.DynType))
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
		return nil, fmt.Errorf("the expression returns %s, but must return bool", t)
	}
	return env.Program(ast, cel.CostLimit(ruleCost), cel.InterruptCheckFrequency(100))
}

// Evaluate evaluates a rule with its variables, and limits the time that it takes. A rule's cost is limited
// when it is compiled.
type Evaluate func(rule cel.Program, variables map[string]any) (ref.Val, error)

// approves reports whether a rule approves of a plan. A rule that cannot be evaluated returns an error, and
// never approves.
func (r *rule) approves(plan map[string]any, evaluate Evaluate) (bool, error) {
	out, err := evaluate(r.program, map[string]any{"plan": plan})
	if err != nil {
		return false, err
	}
	yes, is := out.Value().(bool)
	if !is {
		return false, errors.New("the expression did not return bool")
	}
	return yes, nil
}

// rule is a compiled rule of a policy.
type rule struct {
	name    string
	program cel.Program
}

// approvingRule returns the first of a policy's rules that approves of a plan. problem joins the errors of
// rules that could not be evaluated. An invalid policy approves of nothing.
func (p *Policy) approvingRule(plan *v1alpha1.Plan, evaluate Evaluate) (name string, problem error) {
	if p == nil || p.Invalid != nil || len(p.rules) == 0 {
		return "", nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(plan)
	if err != nil {
		return "", err
	}
	for _, r := range p.rules {
		yes, err := r.approves(fields, evaluate)
		if err != nil {
			problem = errors.Join(problem, fmt.Errorf("rule %s of %s: %w", r.name, p, err))
			continue
		}
		if yes {
			return r.name, nil
		}
	}
	return "", problem
}
