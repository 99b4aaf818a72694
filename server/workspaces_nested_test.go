package server_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// createNested creates a workspace in another one. It does not wait.
func (a atoll) createNested(t *testing.T, parent, name string) *rest.Config {
	t.Helper()
	_, err := nestedOf(t, a.workspace(t, parent)).Create(t.Context(), newWorkspace(name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a.workspace(t, parent+":"+name)
}

func newWorkspace(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name}}}
}

func nestedOf(t *testing.T, config *rest.Config) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(tenancy.WorkspaceResource)
}

func watchConfigMaps(t *testing.T, in *rest.Config) watch.Interface {
	t.Helper()
	w, err := clientOf(t, in).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func wantNotFound(t *testing.T, in *rest.Config) {
	t.Helper()
	if _, err := clientOf(t, in).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%s answers with %v", in.Host, err)
	}
}

// TestWorkspaceNested: a workspace in a workspace can be used at once, and has objects of its own. When it is deleted, or the one that it
// is in, its watches end and its path is 404, also when workspaces of the same names exist again. The database has nothing of it.
func TestWorkspaceNested(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, server.Config{DataDir: dir})
	stopped := false
	defer func() {
		if !stopped {
			_ = s.stop()
		}
	}()
	a := s.createWorkspace(t, "a")
	s.createWorkspace(t, "other")
	b := s.createNested(t, "a", "b")
	createConfigMap(t, clientOf(t, b), "default", "config")
	for _, path := range []string{"a", "other"} {
		if _, err := clientOf(t, s.workspace(t, path)).CoreV1().ConfigMaps("default").Get(t.Context(), "config", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s has it: %v", path, err)
		}
	}
	for _, path := range []string{"b", "other:b", "a:b:b", "a:a", "b:a", "a:", "a:b:"} {
		wantNotFound(t, s.workspace(t, path))
	}
	url := "--server=" + s.URL() + "/clusters/a"
	eventually(t, "it is Ready", func(context.Context) error {
		if out := s.mustKubectl(t, "", url, "get", "workspaces"); !strings.Contains(out, "Ready") || !strings.Contains(out, "/clusters/a:b") || !strings.Contains(out, "atoll-admin") {
			return errors.New(out)
		}
		return nil
	})
	if out := s.mustKubectl(t, "", url, "explain", "workspace.spec.owner"); !strings.Contains(out, "cluster-admin") {
		t.Error(out)
	}

	c := s.createNested(t, "a:b", "c")
	createConfigMap(t, clientOf(t, c), "default", "config")
	inB, inC := watchConfigMaps(t, b), watchConfigMaps(t, c)
	s.mustKubectl(t, "", url, "delete", "workspace", "b") // waits until it is gone
	for range inB.ResultChan() {                          // it ends
	}
	for range inC.ResultChan() {
	}
	wantNotFound(t, b)
	s.createNested(t, "a", "b")
	if _, err := clientOf(t, b).CoreV1().ConfigMaps("default").Get(t.Context(), "config", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the new workspace has the object of the old one: %v", err)
	}
	wantNotFound(t, c)

	s.createNested(t, "a:b", "c")
	createConfigMap(t, clientOf(t, c), "default", "config")
	inC = watchConfigMaps(t, c)
	s.mustKubectl(t, "", "delete", "workspace", "a")
	for range inC.ResultChan() {
	}
	wantNotFound(t, c)
	s.createWorkspace(t, "a")
	wantNotFound(t, b)
	wantNotFound(t, c)
	if list, err := nestedOf(t, a).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("the new workspace has %v, %v", list, err)
	}

	if err := s.stop(); err != nil {
		t.Error(err)
	}
	stopped = true
	datastore, err := server.OpenDatastoreReadOnly(t.Context(), server.SQLiteURL(filepath.Join(dir, "atoll.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer datastore.Close()
	names, err := datastore.Keyspaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, name := range names {
		if strings.HasPrefix(name, "workspace-") {
			left++
		}
	}
	if left != 2 { // a and other
		t.Errorf("the database has %v", names)
	}
}

// TestWorkspaceNestedFields: users set neither the owner of a workspace in a workspace nor remove what keeps it until its objects are
// removed, and there is a limit to the depth.
func TestWorkspaceNestedFields(t *testing.T) {
	s := theServer(t)
	in := nestedOf(t, s.createWorkspace(t, "fields"))
	forged := newWorkspace("b")
	forged.Object["spec"] = map[string]any{"owner": map[string]any{"username": "mallory"}}
	if _, err := in.Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	changed, err := in.Patch(t.Context(), "b", types.MergePatchType, []byte(`{"metadata":{"finalizers":null},"spec":{"owner":{"username":"mallory"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if owner, _, _ := unstructured.NestedString(changed.Object, "spec", "owner", "username"); owner != "atoll-admin" || len(changed.GetFinalizers()) != 1 {
		t.Errorf("owner %s, finalizers %v", owner, changed.GetFinalizers())
	}
	path := "fields:b"
	for i := range 6 {
		s.createNested(t, path, fmt.Sprintf("n%d", i))
		path += fmt.Sprintf(":n%d", i)
	}
	createConfigMap(t, clientOf(t, s.workspace(t, path)), "default", "config")
	if _, err := nestedOf(t, s.workspace(t, path)).Create(t.Context(), newWorkspace("more"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "8 levels") {
		t.Errorf("the ninth level: %v", err)
	}
	out, err := s.kubectl(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: workspaces.tenancy.atoll.dev}, spec: {group: tenancy.atoll.dev, scope: Cluster,
		names: {plural: workspaces, kind: Workspace}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`,
		"--server="+s.URL()+"/clusters/fields", "create", "-f", "-")
	if err == nil || !strings.Contains(out, "gets the group tenancy.atoll.dev from the server") {
		t.Errorf("a definition in a bound group: %v: %s", err, out)
	}
}

// TestWorkspaceNestedAccess: the RBAC of a workspace decides who creates workspaces in it. The account that does so has no rights in the
// new one, and neither has an account of the same name there.
func TestWorkspaceNestedAccess(t *testing.T) {
	s := theServer(t)
	parent := s.createWorkspace(t, "access")
	stranger := rest.CopyConfig(parent)
	stranger.Impersonate.UserName = "stranger"
	if _, err := nestedOf(t, stranger).Create(t.Context(), newWorkspace("b"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without a role: %v", err)
	}
	robot := func(in *rest.Config) *rest.Config {
		t.Helper()
		client := clientOf(t, in)
		if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		issued, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		as := rest.AnonymousClientConfig(in)
		as.BearerToken = issued.Status.Token
		return as
	}
	inParent := robot(parent)
	_, err := clientOf(t, parent).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "robot"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nestedOf(t, inParent).Create(t.Context(), newWorkspace("b"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	child := s.workspace(t, "access:b")
	inParent.Host = child.Host
	if _, err := clientOf(t, inParent).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the account of the parent: %v", err)
	}
	if _, err := clientOf(t, robot(child)).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an account of the same name: %v", err)
	}
}
