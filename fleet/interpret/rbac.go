package interpret

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// roleNeeds: a program that may write a custom resource works on it, so an operator's types are placed
// with it. A program that only reads (an exporter of metrics, a dashboard, a backup) takes no type with a
// status along: that may be at home in the control plane. For those without, and for rules with "*", see
// roleChooses. Whether a name is a type that exists is not known here: a referenced object need not exist.
func roleNeeds(obj *unstructured.Unstructured, out *refs) error {
	if !isDefaultPart(obj) {
		roleTypes(obj, out, mayWrite)
	}
	return nil
}

// mayWrite reports whether a rule permits to change objects.
func mayWrite(rule map[string]any) bool {
	return slices.ContainsFunc(texts(rule, "verbs"), func(verb string) bool {
		return slices.Contains([]string{"*", "create", "update", "patch", "delete", "deletecollection"}, verb)
	})
}

func anyRule(map[string]any) bool { return true }

// roleTypes adds the types that rules of a role name.
func roleTypes(obj *unstructured.Unstructured, out *refs, counts func(rule map[string]any) bool) {
	for _, rule := range items(obj.Object, "rules") {
		if !counts(rule) {
			continue
		}
		for _, group := range texts(rule, "apiGroups") {
			if !isCustomGroup(group) {
				continue
			}
			for _, resource := range texts(rule, "resources") {
				resource, _, _ = strings.Cut(resource, "/")
				if resource != "*" && resource != "" {
					out.global(crdGroup, "CustomResourceDefinition", resource+"."+group)
				}
			}
		}
	}
}

// isCustomGroup reports whether a group may have custom types: it is neither Kubernetes' nor this
// control plane's own.
func isCustomGroup(group string) bool { return strings.Contains(group, ".") && !ownGroup(group) }

// aggregateToPrefix begins the labels of roles that extend Kubernetes' own roles admin, edit and view.
const aggregateToPrefix = "rbac.authorization.k8s.io/aggregate-to-"

// isDefaultPart reports whether a role extends one of Kubernetes' own roles, which each cluster has.
func isDefaultPart(obj *unstructured.Unstructured) bool {
	for label := range obj.GetLabels() {
		if strings.HasPrefix(label, aggregateToPrefix) {
			return true
		}
	}
	return false
}

// clusterRoleFollows: a role that extends admin, edit or view grants these people's rights to certain
// types, so it goes where the types are.
func clusterRoleFollows(obj *unstructured.Unstructured, out *attachments) error {
	if isDefaultPart(obj) {
		roleTypes(obj, &out.refs, anyRule)
		out.chosen = append(out.chosen, wholeGroups(obj, anyRule)...)
	}
	return nil
}

func roleBindingNeeds(obj *unstructured.Unstructured, out *refs) error {
	name := text(obj.Object, "roleRef", "name")
	if text(obj.Object, "roleRef", "kind") == "ClusterRole" {
		out.global(rbacGroup, "ClusterRole", name)
		return nil
	}
	out.here(rbacGroup, "Role", name)
	return nil
}

const (
	accountUserPrefix       = "system:serviceaccount:"
	namespaceAccountsPrefix = "system:serviceaccounts:"
	DefaultServiceAccount   = "default" // each cluster creates one in each namespace
)

// subjectsFollows: permissions follow the ServiceAccounts that have them. If every cluster creates
// the account itself, they follow every workload that could use it. Users and groups belong to the
// control plane.
func subjectsFollows(obj *unstructured.Unstructured, out *attachments) error {
	for _, subject := range items(obj.Object, "subjects") {
		namespace, name := accountOf(obj, subject)
		switch {
		case namespace == "":
		case name == "" || name == DefaultServiceAccount:
			out.selectedIn(namespace, labels.Everything())
		default:
			out.add(refer("", "ServiceAccount", namespace, name))
		}
	}
	return nil
}

// accountOf returns the ServiceAccount of a subject, or only a namespace if the subject is all
// accounts of the namespace, or nothing.
func accountOf(binding *unstructured.Unstructured, subject map[string]any) (namespace, name string) {
	name = text(subject, "name")
	switch text(subject, "kind") {
	case "ServiceAccount":
		namespace = text(subject, "namespace")
		if namespace == "" {
			namespace = binding.GetNamespace()
		}
		return namespace, name
	case "User":
		if account, ok := strings.CutPrefix(name, accountUserPrefix); ok {
			namespace, name, _ = strings.Cut(account, ":")
			return namespace, name
		}
	case "Group":
		if namespace, ok := strings.CutPrefix(name, namespaceAccountsPrefix); ok {
			return namespace, ""
		}
	}
	return "", ""
}

// prepareClusterRole leaves the rules of an aggregated role to each cluster's controller, which
// sets them.
func prepareClusterRole(obj map[string]any) {
	if obj["aggregationRule"] != nil {
		delete(obj, "rules")
	}
}

// isForeignAccounts reports whether a Role or a RoleBinding in a namespace of Kubernetes' own is for
// ServiceAccounts of other namespaces, as operators have one there to elect a leader or to read how an
// API server authenticates its clients. It is written to be where those accounts are.
func isForeignAccounts(obj *unstructured.Unstructured) bool {
	if obj.GroupVersionKind().Group != rbacGroup {
		return false
	}
	if obj.GetKind() == "Role" {
		return true // it goes nowhere unless a placed RoleBinding needs it
	}
	for _, subject := range items(obj.Object, "subjects") {
		if namespace, _ := accountOf(obj, subject); namespace != "" && !IsSystemNamespace(namespace) {
			return true
		}
	}
	return false
}

// isForClusterControllers reports whether a binding is for ServiceAccounts of Kubernetes' controllers in
// kube-system. Each cluster creates these itself, so no placed account leads there.
func isForClusterControllers(binding *unstructured.Unstructured) bool {
	if binding.GroupVersionKind().Group != rbacGroup {
		return false
	}
	for _, subject := range items(binding.Object, "subjects") {
		namespace, name := accountOf(binding, subject)
		if namespace == metav1.NamespaceSystem && (strings.HasSuffix(name, "-controller") || slices.Contains(clusterControllers, name)) {
			return true
		}
	}
	return false
}

// clusterControllers are accounts of Kubernetes' controllers whose names do not end with "-controller".
var clusterControllers = []string{"horizontal-pod-autoscaler", "generic-garbage-collector", "pod-garbage-collector", "bootstrap-signer", "token-cleaner"}

// rbacStaysHome keeps permissions for the control plane itself: those that its API server creates,
// and those of only users and groups.
// PermissionsOfPeople is why a binding stays in the control plane, where people send their requests. An
// administrator can place it all the same.
const PermissionsOfPeople = "all its subjects are users and groups of the control plane"

func rbacStaysHome(obj *unstructured.Unstructured) string {
	switch {
	case obj.GetLabels()["kubernetes.io/bootstrapping"] == "rbac-defaults":
		return "every API server creates its own default roles"
	case !strings.HasSuffix(obj.GetKind(), "Binding"):
		return ""
	}
	for _, subject := range items(obj.Object, "subjects") {
		if namespace, _ := accountOf(obj, subject); namespace != "" {
			return ""
		}
	}
	return PermissionsOfPeople
}
