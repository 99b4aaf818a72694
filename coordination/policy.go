package coordination

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	admission "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
)

// fencedOff begins the message for a former leader.
const fencedOff = "fenced off: "

// A fence consists of two policies. One uses the lease as its parameter, and is inactive
// while the lease is missing. If it denied everything then, it would also bind writers that
// are not fenced, and a namespace with both lease and objects could not be deleted. The
// other needs no lease, so that the order of writes to an object always holds.
const leaseSuffix, objectsSuffix = ".lease", ".objects"

func fenceName(lease types.NamespacedName, suffix string) string {
	return "fence." + lease.Namespace + "." + lease.Name + suffix
}

// leasePolicy refuses tokens that are older than the lease.
func (r Rules) leasePolicy() (*admission.ValidatingAdmissionPolicyApplyConfiguration, *admission.ValidatingAdmissionPolicyBindingApplyConfiguration) {
	spec := r.shared().
		WithParamKind(admission.ParamKind().WithAPIVersion(LeaseResource.GroupVersion().String()).WithKind(leaseKind)).
		WithVariables(
			variable("transitions", `has(params.spec.leaseTransitions) ? params.spec.leaseTransitions : 0`),
			variable("holder", `has(params.spec.holderIdentity) ? params.spec.holderIdentity : ''`),
		).
		WithValidations(validation(
			// The other policy checks for a missing token.
			`!variables.stated || (variables.token[0] == params.metadata.uid && int(variables.token[1]) >= variables.transitions)`,
			`'`+fencedOff+`leadership ' + variables.token[1] + ' of Lease `+r.Lease.String()+` is over, leadership ' + `+
				`string(variables.transitions) + ' of "' + variables.holder + '" has begun: stop leading'`))
	binding := admission.ValidatingAdmissionPolicyBindingSpec().WithParamRef(admission.ParamRef().
		WithNamespace(r.Lease.Namespace).WithName(r.Lease.Name).WithParameterNotFoundAction(admissionv1.AllowAction))
	return r.bind(leaseSuffix, spec, binding)
}

// objectsPolicy refuses writes without a token, and tokens that are older than the one they
// replace.
func (r Rules) objectsPolicy() (*admission.ValidatingAdmissionPolicyApplyConfiguration, *admission.ValidatingAdmissionPolicyBindingApplyConfiguration) {
	lease := r.Lease.String()
	spec := r.shared().
		WithVariables(
			variable("before", `request.operation == 'UPDATE' ? `+tokenIn("oldObject")+` : ''`),
			variable("ordered", `variables.stated && variables.before.matches('`+tokenPattern+`')`),
			variable("last", `variables.before.split('/')`),
		).
		WithValidations(
			validation(
				`variables.stated`,
				`request.userInfo.username + ' may only write this as the leader of Lease `+lease+`, and there is no token of it on the object: `+
					`use coordination.Fence, and .status.fence in writes of the status'`),
			validation(
				`!variables.ordered || (variables.token[0] == variables.last[0] `+
					`? int(variables.token[1]) >= int(variables.last[1]) : int(variables.token[2]) >= int(variables.last[2]))`,
				`'`+fencedOff+`the object was written in leadership ' + variables.before + ' of Lease `+lease+`, `+
					`and this write is of the earlier ' + variables.now + ': stop leading'`),
			validation(
				`request.operation != 'DELETE' || (request.options != null && has(request.options.preconditions) && has(request.options.preconditions.resourceVersion))`,
				`'a leader deletes with the object\'s resourceVersion as a precondition, so that it deletes what it has marked and nothing newer'`),
		)
	return r.bind(objectsSuffix, spec, admission.ValidatingAdmissionPolicyBindingSpec())
}

// shared is the common part of both policies. A variable is evaluated when it is first
// used, and at most once.
func (r Rules) shared() *admission.ValidatingAdmissionPolicySpecApplyConfiguration {
	return admission.ValidatingAdmissionPolicySpec().
		WithFailurePolicy(admissionv1.Fail).
		WithMatchConstraints(admission.MatchResources().WithResourceRules(r.matches()...)).
		WithMatchConditions(admission.MatchCondition().WithName("bound-writer").WithExpression(r.bound())).
		WithVariables(
			variable("status", `has(request.subResource) && request.subResource == 'status'`),
			// A deletion has no new object: the deleted one counts.
			variable("now", `request.operation == 'DELETE' ? `+tokenIn("oldObject")+` : `+tokenIn("object")),
			variable("stated", `variables.now.matches('`+tokenPattern+`')`),
			variable("token", `variables.now.split('/')`),
		)
}

// bind creates a policy and its denying binding.
func (r Rules) bind(suffix string, policy *admission.ValidatingAdmissionPolicySpecApplyConfiguration, binding *admission.ValidatingAdmissionPolicyBindingSpecApplyConfiguration) (
	*admission.ValidatingAdmissionPolicyApplyConfiguration, *admission.ValidatingAdmissionPolicyBindingApplyConfiguration) {
	name := fenceName(r.Lease, suffix)
	return admission.ValidatingAdmissionPolicy(name).WithSpec(policy),
		admission.ValidatingAdmissionPolicyBinding(name).WithSpec(binding.WithPolicyName(name).WithValidationActions(admissionv1.Deny))
}

// tokenPattern is the format of Token.String.
const tokenPattern = `^[0-9a-f-]{36}/[0-9]{1,10}/[0-9]{1,18}$`

// tokenIn returns an expression for the token of an object; ” if it has none.
func tokenIn(object string) string {
	return fmt.Sprintf(`(variables.status `+
		`? (has(%[1]s.status) && has(%[1]s.status.fence) ? string(%[1]s.status.fence) : '') `+
		`: (has(%[1]s.metadata.annotations) && %[2]q in %[1]s.metadata.annotations ? %[1]s.metadata.annotations[%[2]q] : ''))`,
		object, FenceAnnotation)
}

// matches lists the resources by group. A status is neither created nor deleted.
func (r Rules) matches() []*admission.NamedRuleWithOperationsApplyConfiguration {
	type key struct {
		group  string
		status bool
	}
	resources := map[key][]string{}
	for _, res := range r.Resources {
		k := key{res.Group, strings.HasSuffix(res.Resource, "/status")}
		resources[k] = append(resources[k], res.Resource)
	}
	var rules []*admission.NamedRuleWithOperationsApplyConfiguration
	order := func(a, b key) int {
		if c := strings.Compare(a.group, b.group); c != 0 || a.status == b.status {
			return c
		}
		return map[bool]int{true: 1, false: -1}[a.status]
	}
	for _, k := range slices.SortedFunc(maps.Keys(resources), order) {
		operations := []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete}
		if k.status {
			operations = []admissionv1.OperationType{admissionv1.Update}
		}
		rules = append(rules, admission.NamedRuleWithOperations().WithAPIGroups(k.group).WithAPIVersions("*").
			WithResources(resources[k]...).WithOperations(operations...))
	}
	return rules
}

// bound returns an expression that is true if the fence binds the writer. A member's user
// has the member's name and a colon before its own.
func (r Rules) bound() string {
	var writers []string
	for _, user := range r.Users {
		writers = append(writers, fmt.Sprintf("request.userInfo.username == %s", strconv.Quote(user)))
	}
	for _, account := range r.ServiceAccounts {
		name := "system:serviceaccount:" + account.Namespace + ":" + account.Name
		writers = append(writers, fmt.Sprintf("request.userInfo.username == %s || request.userInfo.username.endsWith(%s)",
			strconv.Quote(name), strconv.Quote(":"+name)))
	}
	return strings.Join(writers, " || ")
}

func variable(name, expression string) *admission.VariableApplyConfiguration {
	return admission.Variable().WithName(name).WithExpression(expression)
}

func validation(expression, message string) *admission.ValidationApplyConfiguration {
	return admission.Validation().WithExpression(expression).WithMessageExpression(message).WithReason(metav1.StatusReasonForbidden)
}
