package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// createPolicy creates a policy with that many expressions.
func createPolicy(t *testing.T, in *rest.Config, name string, expressions int) error {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}}}}}}}}
	for range expressions {
		policy.Spec.Validations = append(policy.Spec.Validations, admissionregistrationv1.Validation{Expression: "true"})
	}
	_, err := clientOf(t, in).AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
	return err
}

func exceeds(t *testing.T, err error, words string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
		t.Errorf("want %q: %v", words, err)
	}
}

// TestWorkspaceCompiledLimits: a workspace that sets no limits has the default. An administrator raises it for a workspace that is awake, also a nested
// one. A tenant with permission to create workspaces gets no more by the limit of a new one, by a nested one, or by a copy.
func TestWorkspaceCompiledLimits(t *testing.T) {
	dir := t.TempDir()
	s := ownServer(t, server.Config{DataDir: dir})
	in := s.createWorkspace(t, "many")
	if err := createPolicy(t, in, "all", tenancy.DefaultExpressions); err != nil {
		t.Fatal(err)
	}
	exceeds(t, createPolicy(t, in, "more", 1), "expressions 1000, requested 1 more, limit 1000")
	below := s.createNested(t, "many", "in")
	s.setLimits(t, "many", `{"expressions": 1002}`)
	eventually(t, "the raised limit applies", func(context.Context) error { return createPolicy(t, in, "more", 1) })

	// A tenant raises the limit of a workspace in another one: it has at most the limit of that one.
	patch := func(limit int) {
		t.Helper()
		s.mustKubectl(t, "", "--server="+in.Host, "patch", "workspace", "in", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"limits":{"expressions":%d}}}`, limit))
	}
	patch(1000000)
	eventually(t, "the limit of the workspace above applies", func(context.Context) error {
		err := createPolicy(t, below, "large", 1003)
		if err == nil || !strings.Contains(err.Error(), "limit 1002") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	patch(1)
	eventually(t, "its own limit applies", func(context.Context) error {
		err := createPolicy(t, below, "large", 2)
		if err == nil || !strings.Contains(err.Error(), "limit 1:") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})

	// A copy has the limits of its own.
	s.mustKubectl(t, `{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: copied}, spec: {source: {name: many}}}`, "create", "-f", "-")
	eventually(t, "the copy exceeds its limits", func(context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspace", "copied", "-o", "jsonpath={.status.conditions[0].reason}"); out != "LimitExceeded" {
			return errors.New(out)
		}
		return nil
	})
	s.setLimits(t, "copied", `{"expressions": 1001}`)
	eventually(t, "the copy is complete", func(context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspace", "copied", "-o", "jsonpath={.status.phase}"); out != "Ready" {
			return errors.New(out)
		}
		return nil
	})
	exceeds(t, createPolicy(t, s.workspace(t, "copied"), "again", 1), "expressions 1001, requested 1 more, limit 1001")
	s.setLimits(t, "copied", `{"expressions": 1002}`)
	eventually(t, "the usage has the expressions", func(context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspace", "copied", "-o", "jsonpath={.status.usage.definitions} {.status.usage.expressions}"); out != "0 1001" {
			return errors.New(out)
		}
		return nil
	})

	// A user with create alone.
	root := clientOf(t, s.config(t)).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "creators"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"create"}, APIGroups: []string{tenancy.Group}, Resources: []string{"workspaces"}}}}
	if _, err := root.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "creators"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "creators"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}}}
	if _, err := root.ClusterRoleBindings().Create(t.Context(), bound, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bob := clientsOf(t, withCertificate(t, s.config(t), dir, "bob")).Resource(tenancy.WorkspaceResource)
	create := func(name string, limits map[string]any) error {
		w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name}, "spec": map[string]any{"limits": limits}}}
		_, err := bob.Create(t.Context(), w, metav1.CreateOptions{})
		return err
	}
	eventually(t, "bob may create workspaces", func(context.Context) error {
		return create("bobs", map[string]any{"expressions": int64(1000), "definitions": int64(200)})
	})
	exceeds(t, create("bobs-2", map[string]any{"expressions": int64(1001)}), "spec.limits.expressions may be at most 200 definitions and 1000 expressions")
	exceeds(t, create("bobs-2", map[string]any{"definitions": int64(201)}), "spec.limits.definitions")

	// He moves one with a higher limit out of another one.
	patch(1000000)
	admins := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bob"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}, Subjects: bound.Subjects}
	if _, err := clientOf(t, in).RbacV1().ClusterRoleBindings().Create(t.Context(), admins, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	moved := newWorkspace("moved")
	moved.Object["spec"] = map[string]any{"source": map[string]any{"moveFrom": "many:in"}}
	_, err := bob.Create(t.Context(), moved, metav1.CreateOptions{})
	exceeds(t, err, "spec.limits.expressions may be at most")
}
