package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// copyWorkspace creates a copy of a workspace. in is a client of the API that has both.
func copyWorkspace(t *testing.T, in *rest.Config, from, name string, limits map[string]any) error {
	t.Helper()
	spec := map[string]any{"source": map[string]any{"name": from, "uid": "forged"}}
	if limits != nil {
		spec["limits"] = limits
	}
	_, err := clientsOf(t, in).Resource(tenancy.WorkspaceResource).Create(t.Context(), object("Workspace", name, spec), metav1.CreateOptions{})
	return err
}

// workspaceIs waits until a workspace has a phase, and a condition with a reason.
func workspaceIs(t *testing.T, in *rest.Config, name string, phase tenancy.WorkspacePhase, reason, message string) {
	t.Helper()
	eventually(t, name+" is "+string(phase), func(ctx context.Context) error {
		is, err := clientsOf(t, in).Resource(tenancy.WorkspaceResource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text := fmt.Sprint(is.Object["status"])
		if !strings.Contains(text, "phase:"+string(phase)) || !strings.Contains(text, "reason:"+reason) || !strings.Contains(text, message) {
			return errors.New(text)
		}
		return nil
	})
}

// allow binds a user to a ClusterRole.
func allow(t *testing.T, in *rest.Config, name, role string) {
	t.Helper()
	_, err := clientOf(t, in).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWorkspaceCopy: an administrator of a workspace copies it, and no other user does. The copy is served when it is complete: with the
// objects and definitions of the original, an owner of its own, and tokens of its own. It does not have the workspaces in the original.
func TestWorkspaceCopy(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, server.Config{DataDir: dir})
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	root, original := s.config(t), s.createWorkspace(t, "original")
	fillOriginal(t, s, original)
	bob := withCertificate(t, root, dir, "bob")
	creators := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "creators"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{tenancy.Group}, Resources: []string{"workspaces"}}}}
	if _, err := clientOf(t, root).RbacV1().ClusterRoles().Create(t.Context(), creators, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allow(t, root, "bob", "creators")
	allow(t, original, "bob", "admin")
	eventually(t, "bob may list workspaces", func(ctx context.Context) error {
		_, err := clientsOf(t, bob).Resource(tenancy.WorkspaceResource).List(ctx, metav1.ListOptions{})
		return err
	})
	refused := func(err error, why string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %v", why, err)
		}
	}
	const lacks = "or you lack all permissions in it"
	refused(copyWorkspace(t, bob, "original", "copied", nil), lacks)
	refused(copyWorkspace(t, bob, "missing", "copied", nil), lacks)
	asBob := rest.CopyConfig(root)
	asBob.Impersonate.UserName = "bob"
	refused(copyWorkspace(t, asBob, "original", "copied", nil), "impersonated users")
	if err := copyWorkspace(t, root, "original:inner", "copied", nil); !apierrors.IsInvalid(err) {
		t.Errorf("the path of a workspace in a workspace: %v", err)
	}

	allow(t, original, "bob", "cluster-admin")
	if err := copyWorkspace(t, bob, "original", "copied", nil); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, root, "copied", tenancy.WorkspaceReady, "Served", "")
	copied := withCertificate(t, s.workspace(t, "copied"), dir, "bob")
	compareCopy(t, original, copied)
	crossTokens(t, original, copied)
	if out, err := s.kubectl(t, "", "patch", "workspace", "copied", "--type=merge", "-p", `{"spec":{"source":{"name":"other"}}}`); err == nil || !strings.Contains(out, "source does not change") {
		t.Errorf("another source: %v: %s", err, out)
	}
	s.mustKubectl(t, "", "patch", "workspace", "copied", "--type=merge", "-p", `{"spec":{"source":{"uid":"other"}},"metadata":{"labels":{"changed":"true"}}}`)

	if err := copyWorkspace(t, root, "original", "limited", map[string]any{"objects": int64(3)}); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, root, "limited", tenancy.WorkspacePending, "LimitExceeded", "spec.limits.objects permits, which is 3: raise it")
	if _, err := clientOf(t, s.workspace(t, "limited")).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "is being copied") {
		t.Errorf("an incomplete workspace: %v", err)
	}
	if err := copyWorkspace(t, root, "limited", "second", nil); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a copy of an incomplete workspace: %v", err)
	}
	s.setLimits(t, "limited", `{"objects": 1000}`)
	workspaceIs(t, root, "limited", tenancy.WorkspaceReady, "Served", "")
	if _, err := clientOf(t, s.workspace(t, "limited")).CoreV1().Secrets("default").Get(t.Context(), "opaque", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	if err := copyWorkspace(t, root, "original", "unfinished", map[string]any{"objects": int64(3)}); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, root, "unfinished", tenancy.WorkspacePending, "LimitExceeded", "")
	s.mustKubectl(t, "", "delete", "workspace", "unfinished")
	s.gone(t, "unfinished")
	copyNested(t, s, original)
	if err := copyWorkspace(t, root, "original", "orphaned", map[string]any{"objects": int64(3)}); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, root, "orphaned", tenancy.WorkspacePending, "LimitExceeded", "")
	s.mustKubectl(t, "", "delete", "workspace", "original")
	refused(copyWorkspace(t, root, "original", "late", nil), lacks)
	s.createWorkspace(t, "original") // another one
	s.setLimits(t, "orphaned", `null`)
	workspaceIs(t, root, "orphaned", tenancy.WorkspacePending, "SourceNotFound", "delete this one")
	if _, err := clientOf(t, copied).CoreV1().Secrets("default").Get(t.Context(), "opaque", metav1.GetOptions{}); err != nil {
		t.Errorf("a copy without its original: %v", err)
	}
}

// fillOriginal creates objects of all sorts.
func fillOriginal(t *testing.T, s atoll, original *rest.Config) {
	t.Helper()
	in := clientOf(t, original)
	owner, err := in.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Name: "opaque", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}}}, Data: map[string][]byte{"key": []byte("secret")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken},
	} {
		if _, err := in.CoreV1().Secrets("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.mustKubectl(t, widgetDefinition, "--server="+original.Host, "create", "-f", "-")
	eventually(t, "widgets are served", func(ctx context.Context) error {
		_, err := clientsOf(t, original).Resource(sharedWidgets).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "widget"}}}, metav1.CreateOptions{})
		return err
	})
	if _, err := clientsOf(t, original).Resource(tenancy.WorkspaceResource).Create(t.Context(), object("Workspace", "inner", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// compareCopy compares a copy with its original, by the rights of its owner.
func compareCopy(t *testing.T, original, copied *rest.Config) {
	t.Helper()
	widgets, err := clientsOf(t, copied).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(widgets.Items) != 1 {
		t.Fatalf("custom resources of the copy: %v, %v", widgets, err)
	}
	in, from := clientOf(t, copied), clientOf(t, original)
	owner, err := in.CoreV1().ConfigMaps("default").Get(t.Context(), "owner", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := in.CoreV1().Secrets("default").Get(t.Context(), "opaque", metav1.GetOptions{})
	if err != nil || string(secret.Data["key"]) != "secret" || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != owner.UID {
		t.Errorf("a Secret of the copy: %v, %v", secret, err)
	}
	a, errA := from.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	b, errB := in.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err := errors.Join(errA, errB); err != nil || a.UID != b.UID {
		t.Errorf("the namespace default: %s and %s, %v", a.UID, b.UID, err)
	}
	binding, err := in.RbacV1().ClusterRoleBindings().Get(t.Context(), "workspace-owner", metav1.GetOptions{})
	if err != nil || binding.Subjects[0].Name != "bob" {
		t.Errorf("the owner of the copy: %v, %v", binding, err)
	}
	if list, err := clientsOf(t, copied).Resource(tenancy.WorkspaceResource).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("workspaces in the copy: %v, %v", list, err)
	}
}

// crossTokens uses the tokens of a workspace and of its copy in both.
func crossTokens(t *testing.T, original, copied *rest.Config) {
	t.Helper()
	for _, of := range []*rest.Config{original, copied} {
		issued, err := clientOf(t, of).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		secret, err := clientOf(t, of).CoreV1().Secrets("default").Get(t.Context(), "token", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range []*rest.Config{original, copied} {
			for how, token := range map[string]string{"requested": issued.Status.Token, "in a Secret": string(secret.Data[corev1.ServiceAccountTokenKey])} {
				as := rest.AnonymousClientConfig(in)
				as.BearerToken = token
				_, err := clientOf(t, as).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
				if of == in && !apierrors.IsForbidden(err) || of != in && !apierrors.IsUnauthorized(err) {
					t.Errorf("a token of %s, %s, used in %s: %v", of.Host, how, in.Host, err)
				}
			}
		}
	}
}

// copyNested copies a workspace in a workspace.
func copyNested(t *testing.T, s atoll, parent *rest.Config) {
	t.Helper()
	inner := s.workspace(t, "original:inner")
	if err := createSome(t.Context(), clientOf(t, inner)); err != nil {
		t.Fatal(err)
	}
	if err := copyWorkspace(t, parent, "inner", "inner-copied", nil); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, parent, "inner-copied", tenancy.WorkspaceReady, "Served", "")
	list, err := clientOf(t, s.workspace(t, "original:inner-copied")).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("the copy of a workspace in a workspace has %v, %v", list, err)
	}
}
