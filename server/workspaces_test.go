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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// createWorkspace creates a workspace and returns the configuration of an administrator's client of it. It does not wait: the first
// request opens the workspace.
func (a atoll) createWorkspace(t *testing.T, name string) *rest.Config {
	t.Helper()
	_, err := a.dynamic(t).Resource(tenancy.WorkspaceResource).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // not for a server that the test has stopped
		_ = a.dynamic(t).Resource(tenancy.WorkspaceResource).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return a.workspace(t, name)
}

func (a atoll) workspace(t *testing.T, name string) *rest.Config {
	config := a.config(t)
	config.Host += "/clusters/" + name
	return config
}

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// gone waits until a workspace does not exist.
func (a atoll) gone(t *testing.T, name string) {
	t.Helper()
	eventually(t, "workspace "+name+" is gone", func(ctx context.Context) error {
		_, err := a.dynamic(t).Resource(tenancy.WorkspaceResource).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it exists (%v)", err)
	})
}

// TestWorkspace: a workspace is usable at once, with kubectl and client-go, and has nothing of the server's own workspace. When it is
// deleted, its watches end, its paths are 404, and a new one of the same name is empty.
func TestWorkspace(t *testing.T) {
	s := theServer(t)
	in := clientOf(t, s.createWorkspace(t, "team-a"))
	if _, err := in.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(t).CoreV1().ConfigMaps("default").Get(t.Context(), "config", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the server's own workspace has it: %v", err)
	}
	url := "--server=" + s.URL() + "/clusters/team-a"
	if out := s.mustKubectl(t, "", url, "get", "configmaps,namespaces"); !strings.Contains(out, "configmap/config") || !strings.Contains(out, "namespace/kube-system") {
		t.Error(out)
	}
	s.mustKubectl(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: nginx}]}}}}`,
		url, "apply", "--server-side", "-f", "-")
	if out := s.mustKubectl(t, "", url, "describe", "deployment", "web"); !strings.Contains(out, "nginx") {
		t.Error(out)
	}
	if out := s.mustKubectl(t, "", url, "api-resources"); !strings.Contains(out, "infra.atoll.dev/v1alpha1") || strings.Contains(out, "providers.atoll.dev") || strings.Contains(out, "sharedapis") || !strings.Contains(out, "clusterplacements") || !strings.Contains(out, "apibindings") || !strings.Contains(out, "resourcequotas") {
		t.Error(out)
	}
	eventually(t, "it is Ready", func(context.Context) error {
		if out := s.mustKubectl(t, "", "get", "workspace", "team-a", "-o", "jsonpath={.status.phase} {.status.path} {.spec.owner.username}"); out != "Ready /clusters/team-a atoll-admin" {
			return errors.New(out)
		}
		return nil
	})

	watch, err := in.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	s.mustKubectl(t, "", "delete", "workspace", "team-a")
	for range watch.ResultChan() { // it ends
	}
	if _, err := in.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deleted workspace answers with %v", err)
	}
	s.gone(t, "team-a")
	again := clientOf(t, s.createWorkspace(t, "team-a"))
	if _, err := again.CoreV1().ConfigMaps("default").Get(t.Context(), "config", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the new one has it: %v", err)
	}
}

// TestWorkspaceCredentials: accounts belong to one workspace. What identifies one elsewhere is no credential in it, and the other way
// around; a user without a role is forbidden everything.
func TestWorkspaceCredentials(t *testing.T) {
	s := theServer(t)
	inA, inB := s.createWorkspace(t, "cred-a"), s.createWorkspace(t, "cred-b")
	token := func(config *rest.Config) string {
		t.Helper()
		client := clientOf(t, config)
		_, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "robot"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		issued, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return issued.Status.Token
	}
	root := s.config(t)
	defer func() {
		_ = s.client(t).RbacV1().ClusterRoleBindings().Delete(context.Background(), "robot", metav1.DeleteOptions{})
		_ = s.client(t).CoreV1().ServiceAccounts("default").Delete(context.Background(), "robot", metav1.DeleteOptions{})
	}()
	tokens := map[string]string{"a": token(inA), "b": token(inB), "root": token(root)}
	for of, token := range tokens {
		for in, config := range map[string]*rest.Config{"a": inA, "b": inB, "root": root} {
			as := rest.AnonymousClientConfig(config)
			as.BearerToken = token
			_, err := clientOf(t, as).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			if of == in && err != nil && !apierrors.IsForbidden(err) || of != in && !apierrors.IsUnauthorized(err) {
				t.Errorf("the token of %s in %s: %v", of, in, err)
			}
		}
	}
	stranger := rest.CopyConfig(inA)
	stranger.Impersonate.UserName = "stranger"
	if _, err := clientOf(t, stranger).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without a role: %v", err)
	}
	if _, err := clientOf(t, rest.AnonymousClientConfig(inA)).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("without credentials: %v", err)
	}
}

// TestWorkspaceNames: a name that no path can have is refused.
func TestWorkspaceNames(t *testing.T) {
	s := theServer(t)
	out, err := s.kubectl(t, `{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: team.a}}`, "create", "-f", "-")
	if err == nil || !strings.Contains(out, "a workspace's name is in paths") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := s.kubectl(t, "", "--server="+s.URL()+"/clusters/missing", "get", "namespaces"); err == nil {
		t.Errorf("a workspace that does not exist: %s", out)
	}
}
