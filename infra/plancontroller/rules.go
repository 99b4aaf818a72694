package plancontroller

import (
	"context"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"

	"github.com/atoll-dev/atoll/infra/approval"
)

// ruleTime bounds the evaluation of a rule.
const ruleTime = time.Second

// evaluateWithin evaluates rules until ctx ends, each for a limited time.
func evaluateWithin(ctx context.Context) approval.Evaluate {
	return func(rule cel.Program, variables map[string]any) (ref.Val, error) {
		ctx, cancel := context.WithTimeout(ctx, ruleTime)
		defer cancel()
		out, _, err := rule.ContextEval(ctx, variables)
		return out, err
	}
}
