package plans

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

const (
	// ruleCost bounds what a rule computes; a look at each of a hundred problems and fifty chunks
	// costs some thousands.
	ruleCost = 1_000_000
	ruleTime = time.Second
)

// compileRule reads an expression over "plan".
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
		return nil, fmt.Errorf("it gives %s, and has to give true or false", t)
	}
	return env.Program(ast, cel.CostLimit(ruleCost), cel.InterruptCheckFrequency(100))
}

// holds tells whether a rule says true of a plan. What it cannot say is an error, and never a yes.
func holds(ctx context.Context, rule cel.Program, plan map[string]any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ruleTime)
	defer cancel()
	out, _, err := rule.ContextEval(ctx, map[string]any{"plan": plan})
	if err != nil {
		return false, err
	}
	yes, is := out.Value().(bool)
	if !is {
		return false, errors.New("it does not give true or false")
	}
	return yes, nil
}

// rule is one that was read.
type rule struct {
	name    string
	program cel.Program
}

// rule finds the first of a policy's rules that lets a plan through. Problems are of rules that could not say. A policy
// that is broken lets nothing through.
func (p *policy) rule(ctx context.Context, plan *v1alpha1.Plan) (name string, problem error) {
	if p == nil || p.broken != nil || len(p.rules) == 0 {
		return "", nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(plan)
	if err != nil {
		return "", err
	}
	for _, r := range p.rules {
		yes, err := holds(ctx, r.program, fields)
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
