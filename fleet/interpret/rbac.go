package interpret

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// roleNeeds: a program that may work with a custom resource needs its type. So an
// operator's types come along with it. Rules that name all resources of a group
// name none. Which of the names are types the control plane has is not known here;
// a reference need not lead to anything.
func roleNeeds(obj *unstructured.Unstructured, out *refs) error {
	for _, rule := range items(obj.Object, "rules") {
		for _, group := range texts(rule, "apiGroups") {
			if !strings.Contains(group, ".") || ownGroup(group) {
				continue // of Kubernetes, or of this control plane
			}
			for _, resource := range texts(rule, "resources") {
				resource, _, _ = strings.Cut(resource, "/")
				if resource != "*" && resource != "" {
					out.global(crdGroup, "CustomResourceDefinition", resource+"."+group)
				}
			}
		}
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
	accountUser       = "system:serviceaccount:"
	accountsOfSpace   = "system:serviceaccounts:"
	everybodysAccount = "default" // each cluster makes one in each namespace
)

// subjectsFollows: permissions go where the ServiceAccount is that has them. Where
// every cluster has the account by itself, they go where anything is that could use
// it. Users and groups are those of the control plane.
func subjectsFollows(obj *unstructured.Unstructured, out *attachments) error {
	for _, subject := range items(obj.Object, "subjects") {
		namespace, name := accountOf(obj, subject)
		switch {
		case namespace == "":
		case name == "" || name == everybodysAccount:
			out.selectedIn(namespace, labels.Everything())
		default:
			out.add(refer("", "ServiceAccount", namespace, name))
		}
	}
	return nil
}

// accountOf gives the ServiceAccount that a subject is, or only a namespace if it
// is all of one, or nothing.
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
		if account, ok := strings.CutPrefix(name, accountUser); ok {
			namespace, name, _ = strings.Cut(account, ":")
			return namespace, name
		}
	case "Group":
		if namespace, ok := strings.CutPrefix(name, accountsOfSpace); ok {
			return namespace, ""
		}
	}
	return "", ""
}

// prepareClusterRole leaves the rules of an aggregated role to the controller that
// fills them in, which each cluster has.
func prepareClusterRole(obj map[string]any) {
	if obj["aggregationRule"] != nil {
		delete(obj, "rules")
	}
}

// rbacStaysHome keeps what rules the control plane itself: what its API server
// makes, and what speaks of people only.
func rbacStaysHome(obj *unstructured.Unstructured) string {
	switch {
	case obj.GetLabels()["kubernetes.io/bootstrapping"] == "rbac-defaults", strings.HasPrefix(obj.GetName(), "system:"):
		return "every API server makes its own default roles"
	case !strings.HasSuffix(obj.GetKind(), "Binding"):
		return ""
	}
	for _, subject := range items(obj.Object, "subjects") {
		if namespace, _ := accountOf(obj, subject); namespace != "" {
			return ""
		}
	}
	return "its subjects are users and groups of the control plane"
}
