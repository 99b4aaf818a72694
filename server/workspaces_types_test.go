package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// below returns the configuration of an administrator's client of a workspace in this API.
func (a atoll) below(t *testing.T, name string) *rest.Config {
	config := a.config(t)
	separator := "/clusters/"
	if a.path != "" {
		separator = ":"
	}
	config.Host = a.URL() + separator + name
	return config
}

// grant gives a user rules in this API, and waits until they have effect. It takes them back at the end.
func (a atoll) grant(t *testing.T, who string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	rbac := a.client(t).RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: who}, Rules: rules}, metav1.CreateOptions{})
	if err == nil {
		_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: who},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: who},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: who}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = rbac.ClusterRoleBindings().Delete(context.Background(), who, metav1.DeleteOptions{})
		_ = rbac.ClusterRoles().Delete(context.Background(), who, metav1.DeleteOptions{})
	})
	last := rules[len(rules)-1]
	eventually(t, who+" has permissions", func(context.Context) error {
		out, err := a.kubectl(t, "", "auth", "can-i", last.Verbs[0], last.Resources[0]+"."+last.APIGroups[0], "--as="+who)
		if err != nil || !strings.Contains(out, "yes") {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
}

// account returns the configuration of a ServiceAccount with the role cluster-admin in this API.
func (a atoll) account(t *testing.T, name string) *rest.Config {
	t.Helper()
	a.mustKubectl(t, "", "create", "serviceaccount", name)
	a.mustKubectl(t, "", "create", "clusterrolebinding", name, "--clusterrole=cluster-admin", "--serviceaccount=default:"+name)
	t.Cleanup(func() {
		_ = a.client(t).RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = a.client(t).CoreV1().ServiceAccounts("default").Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	as := rest.AnonymousClientConfig(a.config(t))
	as.BearerToken = strings.TrimSpace(a.mustKubectl(t, "", "create", "token", name))
	return as
}

func refused(t *testing.T, err error, is func(error) bool, why string) {
	t.Helper()
	if !is(err) || !strings.Contains(err.Error(), why) {
		t.Errorf("want %q: %v", why, err)
	}
}

// typeSuite is an API with an exporter, and bob, who creates workspaces and types in it.
type typeSuite struct {
	atoll
	exporter string
	bob      *rest.Config
}

func newTypeSuite(t *testing.T, a atoll) typeSuite {
	root := theServer(t)
	s := typeSuite{a, strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), withCertificate(t, a.config(t), shared.dir, "bob")}
	exporter := root.createWorkspace(t, s.exporter)
	root.mustKubectl(t, widgetDefinition, "--server="+exporter.Host, "create", "-f", "-")
	if _, err := clientsOf(t, exporter).Resource(tenancy.APIExportResource).Create(t.Context(), export("widgets"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	group := []string{tenancy.Group}
	a.grant(t, "bob", rbacv1.PolicyRule{APIGroups: group, Resources: []string{"workspacetypes"}, ResourceNames: []string{"small", "missing-but-permitted"}, Verbs: []string{"use"}},
		rbacv1.PolicyRule{APIGroups: group, Resources: []string{"workspacetypes"}, Verbs: []string{"create", "patch"}},
		rbacv1.PolicyRule{APIGroups: group, Resources: []string{"workspaces"}, Verbs: []string{"create", "patch"}})
	return s
}

func (s typeSuite) create(t *testing.T, as *rest.Config, name string, spec map[string]any) (*unstructured.Unstructured, error) {
	t.Helper()
	w := newWorkspace(name)
	if spec != nil {
		w.Object["spec"] = spec
	}
	t.Cleanup(func() { _ = s.workspaces(t).Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return nestedOf(t, as).Create(t.Context(), w, metav1.CreateOptions{})
}

func (s typeSuite) workspaces(t *testing.T) dynamic.ResourceInterface {
	return s.dynamic(t).Resource(tenancy.WorkspaceResource)
}

func (s typeSuite) types(t *testing.T) dynamic.ResourceInterface {
	return s.dynamic(t).Resource(tenancy.WorkspaceTypeResource)
}

// createType creates a type as the administrator, and deletes it at the end.
func (s typeSuite) createType(t *testing.T, name string, spec map[string]any) *unstructured.Unstructured {
	t.Helper()
	created, err := s.types(t).Create(t.Context(), object("WorkspaceType", name, spec), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.types(t).Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return created
}

func (s typeSuite) deleteType(t *testing.T, name string) {
	t.Helper()
	if err := s.types(t).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s typeSuite) apis(names ...string) []any {
	var all []any
	for _, name := range names {
		all = append(all, map[string]any{"path": s.exporter, "name": name, "workspaceUID": "forged"})
	}
	return all
}

// TestWorkspaceTypes: a workspace begins with the contents of its type, also if the type is deleted at once. Users without the verb use are refused.
func TestWorkspaceTypes(t *testing.T) {
	inEachAPI(t, func(t *testing.T, a atoll) {
		s := newTypeSuite(t, a)
		created := s.createType(t, "small", map[string]any{
			"description": "a team", "limits": map[string]any{"objects": int64(1000), "bytes": "10Mi"},
			"namespaces": []any{map[string]any{"name": "shop", "labels": map[string]any{"team": "a"}}},
			"access":     []any{map[string]any{"role": "view", "users": []any{"carol"}}},
			"apis":       s.apis("widgets"),
		})
		apis, _, _ := unstructured.NestedSlice(created.Object, "spec", "apis")
		exporter, err := theServer(t).dynamic(t).Resource(tenancy.WorkspaceResource).Get(t.Context(), s.exporter, metav1.GetOptions{})
		if err != nil || len(apis) != 1 || apis[0].(map[string]any)["workspaceUID"] != string(exporter.GetUID()) {
			t.Errorf("the type has the APIs %v; the exporter is %v, %v", apis, exporter, err)
		}
		if out := s.mustKubectl(t, "", "get", "workspacetypes"); !strings.Contains(out, "DESCRIPTION") || !strings.Contains(out, "a team") || !strings.Contains(out, "10Mi") {
			t.Error(out)
		}
		s.createType(t, "large", nil)

		_, err = s.create(t, s.bob, "typed", map[string]any{"type": "large"})
		refused(t, err, apierrors.IsForbidden, `user "bob" lacks the verb use for this WorkspaceType`)
		_, err = s.create(t, s.bob, "typed", map[string]any{"type": "missing"}) // the answer does not say whether it exists
		refused(t, err, apierrors.IsForbidden, "lacks the verb use")
		_, err = s.create(t, s.bob, "typed", map[string]any{"type": "missing-but-permitted"})
		refused(t, err, apierrors.IsInvalid, `spec.type: Invalid value: "missing-but-permitted": there is no WorkspaceType of this name`)

		w, err := s.create(t, s.bob, "typed", map[string]any{"type": "small", "limits": map[string]any{"objects": int64(2000)},
			"initial": map[string]any{"namespaces": []any{map[string]any{"name": "forged"}}}})
		if err != nil {
			t.Fatal(err)
		}
		s.deleteType(t, "small")
		limits, _, _ := unstructured.NestedMap(w.Object, "spec", "limits")
		if limits["objects"] != int64(2000) || limits["bytes"] != "10Mi" {
			t.Errorf("the limits are %v", limits)
		}
		s.hasBegun(t, string(exporter.GetUID()))
		s.keepsType(t, w)
	})
}

// hasBegun checks the workspace typed. uid is that of the exporter.
func (s typeSuite) hasBegun(t *testing.T, uid string) {
	t.Helper()
	in := withCertificate(t, s.below(t, "typed"), shared.dir, "bob")
	shop, err := clientOf(t, in).CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil || shop.Labels["team"] != "a" {
		t.Fatalf("the namespace is %v, %v", shop, err)
	}
	if _, err := clientOf(t, in).CoreV1().ServiceAccounts("shop").Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := clientOf(t, in).CoreV1().Namespaces().Get(t.Context(), "forged", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a namespace that the user wrote into spec.initial: %v", err)
	}
	carol := withCertificate(t, in, shared.dir, "carol")
	if _, err := clientOf(t, carol).CoreV1().ConfigMaps("shop").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := clientOf(t, carol).CoreV1().Secrets("shop").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secrets for the role view: %v", err)
	}
	eventually(t, "the API of the type is served", func(ctx context.Context) error {
		_, err := clientsOf(t, in).Resource(sharedWidgets).Namespace("shop").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}}, metav1.CreateOptions{})
		return err
	})
	binding, err := clientsOf(t, in).Resource(tenancy.APIBindingResource).Get(t.Context(), "widgets", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	export, _, _ := unstructured.NestedMap(binding.Object, "spec", "export")
	resources, _, _ := unstructured.NestedSlice(binding.Object, "spec", "resources")
	if export["path"] != s.exporter || export["workspaceUID"] != uid || len(resources) != 1 {
		t.Errorf("the APIBinding has %v, %v; the exporter has the UID %s", export, resources, uid)
	}
	if err := clientsOf(t, in).Resource(tenancy.APIBindingResource).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// keepsType checks that updates change neither the type of a Workspace nor its contents.
func (s typeSuite) keepsType(t *testing.T, w *unstructured.Unstructured) {
	t.Helper()
	patch := func(patch string) (*unstructured.Unstructured, error) {
		return nestedOf(t, s.bob).Patch(t.Context(), "typed", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	_, err := patch(`{"spec":{"type":"large"}}`)
	refused(t, err, apierrors.IsInvalid, "the type of a workspace does not change")
	is, err := patch(`{"spec":{"type":null,"initial":null}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"type", "initial"} {
		if was, now := w.Object["spec"].(map[string]any)[field], is.Object["spec"].(map[string]any)[field]; fmt.Sprint(was) != fmt.Sprint(now) {
			t.Errorf("spec.%s was %v and is %v", field, was, now)
		}
	}
}

// TestWorkspaceTypeAPIs: a user without the verb bind writes no type with the API, in whatever way, but changes other fields.
func TestWorkspaceTypeAPIs(t *testing.T) {
	inEachAPI(t, func(t *testing.T, a atoll) {
		s := newTypeSuite(t, a)
		create := func(as *rest.Config, spec map[string]any) error {
			_, err := clientsOf(t, as).Resource(tenancy.WorkspaceTypeResource).Create(t.Context(), object("WorkspaceType", "small", spec), metav1.CreateOptions{})
			return err
		}
		const lacks = "or you lack the verb bind"
		refused(t, create(s.bob, map[string]any{"apis": s.apis("widgets")}), apierrors.IsForbidden, lacks)
		asAdmin := s.impersonating(t, "atoll-admin", "system:masters")
		refused(t, create(asAdmin, map[string]any{"apis": s.apis("widgets")}), apierrors.IsForbidden, "impersonated users")
		account := s.account(t, "typist")
		eventually(t, "an account has its role", func(context.Context) error {
			err := create(account, map[string]any{"apis": s.apis("widgets")})
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ServiceAccounts and impersonated users") {
				return fmt.Errorf("create: %w", err)
			}
			return nil
		})
		refused(t, create(s.config(t), map[string]any{"apis": s.apis("missing")}), apierrors.IsForbidden, lacks)
		refused(t, create(s.config(t), map[string]any{"namespaces": []any{map[string]any{"name": "kube-system"}}}), apierrors.IsInvalid, "every workspace has this namespace")

		s.createType(t, "small", map[string]any{"apis": s.apis("widgets")})
		patch := func(patch string) (*unstructured.Unstructured, error) {
			return clientsOf(t, s.bob).Resource(tenancy.WorkspaceTypeResource).Patch(t.Context(), "small", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		}
		is, err := patch(`{"spec":{"description":"by bob","apis":[{"path":"` + s.exporter + `","name":"widgets"}]}}`)
		if err != nil || !strings.Contains(fmt.Sprint(is.Object["spec"]), "workspaceUID") {
			t.Errorf("an unchanged list: %v, %v", is, err)
		}
		_, err = patch(`{"spec":{"apis":[{"path":"other","name":"widgets"}]}}`)
		refused(t, err, apierrors.IsForbidden, lacks)
	})
}

// TestDefaultWorkspaceType: workspaces that name no type have the default one, while there is one, for all users.
func TestDefaultWorkspaceType(t *testing.T) {
	inEachAPI(t, func(t *testing.T, a atoll) {
		s := newTypeSuite(t, a)
		s.createType(t, "default", map[string]any{"namespaces": []any{map[string]any{"name": "common"}}})
		w, err := s.create(t, s.bob, "by-default", nil)
		if err != nil {
			t.Fatal(err)
		}
		if name, _, _ := unstructured.NestedString(w.Object, "spec", "type"); name != "default" {
			t.Errorf("the type is %q", name)
		}
		in := withCertificate(t, s.below(t, "by-default"), shared.dir, "bob")
		if _, err := clientOf(t, in).CoreV1().Namespaces().Get(t.Context(), "common", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		s.deleteType(t, "default")
		w, err = s.create(t, s.bob, "without", nil)
		if err != nil {
			t.Fatal(err)
		}
		if spec, _, _ := unstructured.NestedMap(w.Object, "spec"); spec["type"] != nil || spec["initial"] != nil {
			t.Errorf("without a type: %v", spec)
		}
	})
}

const forgingPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: forge-workspaces}
spec:
  reinvocationPolicy: IfNeeded
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [tenancy.atoll.dev], apiVersions: ["*"], operations: [CREATE], resources: [workspaces], resourceNames: [forged]}]}
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: "add", path: "/spec/initial", value: {"namespaces": [{"name": "forged"}]}}]'}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: forge-workspaces}
spec: {policyName: forge-workspaces}
`

// TestWorkspaceTypePolicy: a mutating policy of the root does not change the contents that the server sets.
func TestWorkspaceTypePolicy(t *testing.T) {
	s := theServer(t)
	s.mustKubectl(t, forgingPolicy, "create", "-f", "-")
	t.Cleanup(func() {
		_, _ = s.kubectl(t, forgingPolicy, "delete", "-f", "-")
	})
	eventually(t, "the policy changes Workspaces", func(ctx context.Context) error {
		_, err := s.dynamic(t).Resource(tenancy.WorkspaceResource).Create(ctx, newWorkspace("forged"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "a mutating policy or webhook changes what the server sets") {
			return fmt.Errorf("create: %w", err)
		}
		return nil
	})
}
