package apiserver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// provideToEast creates namespaces for users of cluster east, except those whose names
// begin with "required".
func provideToEast(r apiserver.NamespaceRequest) apiserver.MissingNamespace {
	switch {
	case !slices.Contains(r.UserGroups, "atoll:cluster:east") || r.APIGroup != "":
		return apiserver.MissingNamespace{}
	case strings.HasPrefix(r.Namespace, "required"):
		return apiserver.MissingNamespace{Remedy: "ask an administrator to create it"}
	}
	return apiserver.MissingNamespace{Provide: true, Annotations: map[string]string{"for": "east"}, Most: 3, Remedy: "ask an administrator for more"}
}

type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.said = nil }()
	return strings.Join(w.said, "\n")
}

func TestNamespaceOnFirstUse(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.OnMissingNamespace = provideToEast
	var writing sync.Mutex
	var written []apiserver.NamespacedWrite
	files.OnNamespacedWrite = func(_ context.Context, w apiserver.NamespacedWrite) {
		writing.Lock()
		defer writing.Unlock()
		if strings.HasPrefix(w.UserName, "east:") {
			written = append(written, w)
		}
	}
	s := startServer(t, keyspace, files, "sole")
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	heard := &warnings{}
	as := func(name string, groups ...string) *kubernetes.Clientset {
		config := rest.CopyConfig(s.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, user.AllAuthenticated)}
		config.WarningHandler = heard
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	ctx := t.Context()
	// eve may change existing objects, and create none.
	allow(t, s.client, "east:alice", "*")
	allow(t, s.client, "west:bob", "*")
	allow(t, s.client, "east:eve", "get", "patch")
	alice, bob, eve := as("east:alice", "atoll:cluster:east"), as("west:bob", "atoll:cluster:west"), as("east:eve", "atoll:cluster:east")

	create := func(c *kubernetes.Clientset, namespace string, opts metav1.CreateOptions) error {
		_, err := c.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, opts)
		return err
	}
	apply := func(c *kubernetes.Clientset, namespace string, dryRun ...string) error {
		_, err := c.CoreV1().ConfigMaps(namespace).Patch(ctx, "x", types.ApplyPatchType,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`), metav1.PatchOptions{FieldManager: "test", DryRun: dryRun})
		return err
	}
	exists := func(namespace string) bool {
		t.Helper()
		_, err := s.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}

	if err := create(alice, "made", metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ns, err := s.client.CoreV1().Namespaces().Get(ctx, "made", metav1.GetOptions{}); err != nil || ns.Annotations["for"] != "east" {
		t.Errorf("%v, %v", ns, err)
	}
	if err := apply(alice, "applied"); err != nil || !exists("applied") {
		t.Error(err)
	}

	if err := apply(alice, "applied"); err != nil {
		t.Error(err)
	}
	want := func(namespace string) apiserver.NamespacedWrite {
		return apiserver.NamespacedWrite{Namespace: namespace, UserName: "east:alice", UserGroups: []string{"atoll:cluster:east", user.AllAuthenticated}}
	}
	if diff := cmp.Diff([]apiserver.NamespacedWrite{want("made"), want("applied"), want("applied")}, written); diff != "" {
		t.Errorf("writes to namespaces (-want +got):\n%s", diff)
	}
	written = nil

	dryRun := []string{metav1.DryRunAll}
	for what, err := range map[string]error{
		"create": create(alice, "dry", metav1.CreateOptions{DryRun: dryRun}),
		"apply":  apply(alice, "dry", dryRun...),
	} {
		if err != nil || exists("dry") {
			t.Errorf("dry run of %s: %v", what, err)
		}
	}
	if said := heard.take(); !strings.Contains(said, `namespace "dry" does not exist`) {
		t.Errorf("a dry run warns %q", said)
	}

	for _, refused := range []struct {
		what, namespace string
		err             error
		is              func(error) bool
		says            string
	}{
		{"a cluster that gets none", "bobs", create(bob, "bobs", metav1.CreateOptions{}), apierrors.IsNotFound, `namespaces "bobs" not found`},
		{"user without permission to create", "eves", create(eve, "eves", metav1.CreateOptions{}), apierrors.IsForbidden, "cannot create"},
		{"user with permission to patch but not to create", "eves", apply(eve, "eves"), apierrors.IsNotFound, `namespaces "eves" not found`},
		{"the same, dry", "eves", apply(eve, "eves", dryRun...), apierrors.IsNotFound, `namespaces "eves" not found`},
		{"a namespace that is required", "required", create(alice, "required", metav1.CreateOptions{}), apierrors.IsNotFound, "ask an administrator to create it"},
		{"the same, dry", "required", create(alice, "required", metav1.CreateOptions{DryRun: dryRun}), apierrors.IsNotFound, "ask an administrator to create it"},
		{"the fleet's namespace", "atoll-system", create(alice, "atoll-system", metav1.CreateOptions{}), apierrors.IsNotFound, "not found"},
		{"invalid name", "a.b", create(alice, "a.b", metav1.CreateOptions{}), apierrors.IsInvalid, "cannot be created"},
	} {
		if refused.err == nil || !refused.is(refused.err) || !strings.Contains(refused.err.Error(), refused.says) || exists(refused.namespace) {
			t.Errorf("%s: %v", refused.what, refused.err)
		}
	}
	if written != nil {
		t.Errorf("refused requests and dry runs were reported as writes: %v", written)
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := create(alice, "race", metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	// A namespace that is being deleted is not created again before it is gone.
	if _, err := s.client.CoreV1().Namespaces().Patch(ctx, "race", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":["test.atoll.dev/hold"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.CoreV1().Namespaces().Delete(ctx, "race", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create(alice, "race", metav1.CreateOptions{}); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("in a namespace that terminates: %v", err)
	}
	if _, err := s.client.CoreV1().Namespaces().Patch(ctx, "race", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "it can be created again", func() error { return create(alice, "race", metav1.CreateOptions{}) })

	for _, opts := range []metav1.CreateOptions{{DryRun: dryRun}, {}} {
		await(t, "one namespace more than the bound is refused", func() error {
			if err := create(alice, "more", opts); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ask an administrator for more") || exists("more") {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	}
	if err := create(alice, "made", metav1.CreateOptions{}); err != nil {
		t.Errorf("in a namespace that exists, at the bound: %v", err)
	}
}

// allow grants a user permissions on ConfigMaps in all namespaces, and waits until they
// are effective.
func allow(t *testing.T, admin *kubernetes.Clientset, name string, verbs ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: strings.ReplaceAll(name, ":", "-")}
	_, err := admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}, metav1.CreateOptions{})
	if err == nil {
		_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the role is effective", func() error {
		config := admin.RESTClient().Get().AbsPath("/api/v1/namespaces/default/configmaps").
			SetHeader("Impersonate-User", name).Name("none")
		if err := config.Do(context.Background()).Error(); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get as %s: %v", name, err)
		}
		return nil
	})
}
