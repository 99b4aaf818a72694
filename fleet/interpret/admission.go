package interpret

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// admissionPolicyStaysHome returns why an admission policy applies only to requests to the control plane,
// or "". Clusters have to enforce the others, too: on the Pods that their controllers create.
func admissionPolicyStaysHome(obj *unstructured.Unstructured) string {
	if kind := text(obj.Object, "spec", "paramKind", "kind"); kind != "" && !isConfigMapParameter(obj) {
		return "its parameters, of kind " + kind + ", exist only in the control plane"
	}
	for _, expression := range expressionsIn(obj.Object["spec"], nil) {
		if strings.Contains(expression, "request.userInfo") || strings.Contains(expression, "authorizer") {
			return "it depends on the user of a request, and users send their requests to the control plane"
		}
	}
	return ""
}

func isConfigMapParameter(policy *unstructured.Unstructured) bool {
	return text(policy.Object, "spec", "paramKind", "kind") == "ConfigMap" && text(policy.Object, "spec", "paramKind", "apiVersion") == "v1"
}

// expressionsIn returns all CEL expressions of a policy, wherever they are.
func expressionsIn(in any, found []string) []string {
	switch in := in.(type) {
	case map[string]any:
		for name, value := range in {
			if s, is := value.(string); is && strings.HasSuffix(strings.ToLower(name), "expression") {
				found = append(found, s)
			}
			found = expressionsIn(value, found)
		}
	case []any:
		for _, value := range in {
			found = expressionsIn(value, found)
		}
	}
	return found
}

// policyBindingFollows: a binding is useful only where its policy is.
func policyBindingFollows(policyKind string) func(*unstructured.Unstructured, *attachments) error {
	return func(obj *unstructured.Unstructured, out *attachments) error {
		out.global(admissionGroup, policyKind, text(obj.Object, "spec", "policyName"))
		return nil
	}
}

// policyBindingNeeds: the parameters may be a ConfigMap; which kind they have, only the policy says. A
// binding without a namespace takes them from the namespace of each object.
func policyBindingNeeds(obj *unstructured.Unstructured, out *refs) error {
	if namespace, name := text(obj.Object, "spec", "paramRef", "namespace"), text(obj.Object, "spec", "paramRef", "name"); namespace != "" && name != "" {
		out.add(refer("", "ConfigMap", namespace, name))
	}
	return nil
}
