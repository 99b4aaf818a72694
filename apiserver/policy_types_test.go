package apiserver

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestAffordableChecks: the number of compilations is bounded. All expressions of usual policies are checked.
func TestAffordableChecks(t *testing.T) {
	for _, c := range []struct{ variables, expressions, want int }{
		{0, 3, 3}, {10, 40, 40}, {0, 1000, 500}, {999, 1, 0}, {499, 501, 1},
	} {
		if got := affordableChecks(c.variables, c.expressions); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestCheckedExpressions: the expressions are those whose types upstream checks.
func TestCheckedExpressions(t *testing.T) {
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{Validations: []admissionregistrationv1.Validation{
		{Expression: "a", MessageExpression: "b"}, {Expression: "c"}}}}
	got := checkedExpressions(policy)
	if len(got) != 3 || got[1] != (checkedExpression{"spec.validations[0].messageExpression", "b"}) || got[2] != (checkedExpression{"spec.validations[1].expression", "c"}) {
		t.Errorf("%+v", got)
	}
}
