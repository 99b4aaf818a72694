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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// moveWorkspace creates the Workspace that another one moves to. in is a client of the API that is to have it.
func moveWorkspace(t *testing.T, in *rest.Config, from, name string) error {
	t.Helper()
	_, err := clientsOf(t, in).Resource(tenancy.WorkspaceResource).Create(t.Context(),
		object("Workspace", name, map[string]any{"source": map[string]any{"moveFrom": from, "uid": "forged"}}), metav1.CreateOptions{})
	return err
}

func mustMove(t *testing.T, in *rest.Config, from, name string) {
	t.Helper()
	workspaceReadyFor(t, in, from, name)
	if err := moveWorkspace(t, in, from, name); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, in, name, tenancy.WorkspaceReady, "Served", "")
}

// workspaceReadyFor waits until a dry run of a move succeeds.
func workspaceReadyFor(t *testing.T, in *rest.Config, from, name string) {
	t.Helper()
	eventually(t, from+" can move", func(ctx context.Context) error {
		_, err := clientsOf(t, in).Resource(tenancy.WorkspaceResource).Create(ctx,
			object("Workspace", name, map[string]any{"source": map[string]any{"moveFrom": from}}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// tokenOf returns a client with a token of the account default, which may do everything in the namespace default.
func tokenOf(t *testing.T, in *rest.Config) *rest.Config {
	t.Helper()
	issued, err := clientOf(t, in).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	as := rest.AnonymousClientConfig(in)
	as.BearerToken = issued.Status.Token
	return as
}

// wantToken uses a token at a URL: its user is known there, or is not.
func wantToken(t *testing.T, token *rest.Config, in *rest.Config, known bool) {
	t.Helper()
	as := rest.CopyConfig(token)
	as.Host = in.Host
	_, err := clientOf(t, as).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	if known && !apierrors.IsForbidden(err) || !known && !apierrors.IsUnauthorized(err) {
		t.Errorf("a token of %s in %s, known %t: %v", token.Host, in.Host, known, err)
	}
}

// TestWorkspaceMove: a workspace moves with its objects, definitions and the workspaces in it. Its watches end, and go on at the new URL
// where they were. Its tokens are valid at its new path, also after a second move, and not in a new workspace at the old one.
func TestWorkspaceMove(t *testing.T) {
	s := theServer(t)
	root, old, parent := s.config(t), s.createWorkspace(t, "move-a"), s.createWorkspace(t, "move-parent")
	fillOriginal(t, s, old)
	deep := s.createNested(t, "move-a:inner", "deep")
	createConfigMap(t, clientOf(t, deep), "default", "deep")
	token, inDeep := tokenOf(t, old), tokenOf(t, deep)
	secret, err := clientOf(t, old).CoreV1().Secrets("default").Get(t.Context(), "token", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored := rest.AnonymousClientConfig(old)
	stored.BearerToken = string(secret.Data[corev1.ServiceAccountTokenKey])
	workspaceReadyFor(t, parent, "move-a", "moved")
	before, err := clientOf(t, old).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	createConfigMap(t, clientOf(t, old), "default", "late")
	ends := []watch.Interface{watchConfigMaps(t, old), watchConfigMaps(t, deep)}

	mustMove(t, parent, "move-a", "moved")
	for _, w := range ends {
		for range w.ResultChan() { // it ends
		}
	}
	moved, movedDeep := s.workspace(t, "move-parent:moved"), s.workspace(t, "move-parent:moved:inner:deep")
	wantNotFound(t, old)
	wantNotFound(t, deep)
	s.gone(t, "move-a")
	after, err := clientOf(t, moved).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer after.Stop()
	if e := <-after.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "late" {
		t.Errorf("the watch goes on with %+v", e)
	}
	if widgets, err := clientsOf(t, moved).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}); err != nil || len(widgets.Items) != 1 {
		t.Errorf("custom resources: %v, %v", widgets, err)
	}
	if _, err := clientOf(t, movedDeep).CoreV1().ConfigMaps("default").Get(t.Context(), "deep", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	eventually(t, "the workspaces in it have their new paths", func(ctx context.Context) error {
		w, err := clientsOf(t, s.workspace(t, "move-parent:moved:inner")).Resource(tenancy.WorkspaceResource).Get(ctx, "deep", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if path, _, _ := unstructured.NestedString(w.Object, "status", "path"); path != "/clusters/move-parent:moved:inner:deep" {
			return errors.New(path)
		}
		return nil
	})

	again := s.createWorkspace(t, "move-a")
	if _, err := clientOf(t, again).CoreV1().ConfigMaps("default").Get(t.Context(), "late", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a new workspace at the old path has its object: %v", err)
	}
	newer := tokenOf(t, again)
	for _, of := range []*rest.Config{token, stored} {
		wantToken(t, of, moved, true)
		wantToken(t, of, again, false)
	}
	wantToken(t, inDeep, movedDeep, true)
	wantToken(t, newer, moved, false)
	wantToken(t, newer, again, true)

	mustMove(t, root, "move-parent:moved", "move-twice")
	twice := s.workspace(t, "move-twice")
	t.Cleanup(func() {
		_ = s.dynamic(t).Resource(tenancy.WorkspaceResource).Delete(context.Background(), "move-twice", metav1.DeleteOptions{})
	})
	wantNotFound(t, moved)
	wantToken(t, token, twice, true)
	wantToken(t, tokenOf(t, twice), twice, true)
	if err := copyWorkspace(t, root, "move-twice", "move-copy", nil); err != nil {
		t.Fatal(err)
	}
	workspaceIs(t, root, "move-copy", tenancy.WorkspaceReady, "Served", "")
	wantToken(t, token, s.workspace(t, "move-copy"), false)
	s.mustKubectl(t, "", "delete", "workspace", "move-copy")
}

// TestWorkspaceMoveRights: a user needs create at the destination and delete at the source, and gets no permission in the workspace.
func TestWorkspaceMoveRights(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, server.Config{DataDir: dir})
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	root, from, to := s.config(t), s.createWorkspace(t, "from"), s.createWorkspace(t, "to")
	s.createNested(t, "from", "w")
	workspaceIs(t, from, "w", tenancy.WorkspaceReady, "Served", "")
	s.mustKubectl(t, "", "patch", "workspace", "to", "--type=merge", "-p", `{"spec":{"limits":null}}`)
	mallory := withCertificate(t, to, dir, "mallory")
	refused := func(err error, why string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %v", why, err)
		}
	}
	const lacks = "or you lack the verb delete for it"
	refused(moveWorkspace(t, mallory, "from:w", "w"), `cannot create resource "workspaces"`)
	allowWorkspaces(t, to, "mallory", "create", "get")
	refused(moveWorkspace(t, mallory, "from:w", "w"), lacks)
	refused(moveWorkspace(t, mallory, "from:missing", "w"), lacks)
	refused(moveWorkspace(t, mallory, "from", "w"), lacks)
	refused(moveWorkspace(t, mallory, "missing:w", "w"), lacks)
	refused(moveWorkspace(t, mallory, "from:W", "w"), lacks)
	allowWorkspaces(t, from, "mallory", "get", "update", "create")
	refused(moveWorkspace(t, mallory, "from:w", "w"), lacks)
	allowWorkspaces(t, from, "mallory", "delete")
	asMallory := rest.CopyConfig(to)
	asMallory.Impersonate.UserName = "mallory"
	refused(moveWorkspace(t, asMallory, "from:w", "w"), "impersonated users")

	limited := object("Workspace", "w", map[string]any{"source": map[string]any{"moveFrom": "from:w"}, "limits": map[string]any{"objects": int64(5)}})
	if _, err := clientsOf(t, mallory).Resource(tenancy.WorkspaceResource).Create(t.Context(), limited, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "keeps its limits") {
		t.Errorf("other limits: %v", err)
	}
	both := object("Workspace", "w", map[string]any{"source": map[string]any{"moveFrom": "from:w", "backup": true}})
	if _, err := clientsOf(t, to).Resource(tenancy.WorkspaceResource).Create(t.Context(), both, metav1.CreateOptions{}); err == nil {
		t.Error("a backup that moves is accepted")
	}
	mustMove(t, mallory, "from:w", "w")
	w, err := clientsOf(t, to).Resource(tenancy.WorkspaceResource).Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if owner, _, _ := unstructured.NestedString(w.Object, "spec", "owner", "username"); owner != "atoll-admin" {
		t.Errorf("its owner is %s", owner)
	}
	inside := rest.CopyConfig(mallory)
	inside.Host = s.workspace(t, "to:w").Host
	if _, err := clientOf(t, inside).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the user who moved it: %v", err)
	}

	// Users do not write what the server does.
	s.mustKubectl(t, "", "patch", "workspace", "from", "--type=merge", "-p", `{"spec":{"movedTo":{"path":"to:x","uid":"forged"}}}`)
	if _, err := clientOf(t, from).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("a forged move: %v", err)
	}
	if out, err := s.kubectl(t, "", "--server="+to.Host, "patch", "workspace", "w", "--type=merge", "-p", `{"spec":{"source":{"moveFrom":"to"}}}`); err == nil || !strings.Contains(out, "source does not change") {
		t.Errorf("another source: %v: %s", err, out)
	}
	moveRefusals(t, s, root, to)
}

// allowWorkspaces gives a user verbs for Workspaces in one API.
func allowWorkspaces(t *testing.T, in *rest.Config, name string, verbs ...string) {
	t.Helper()
	role := "workspaces-" + strings.Join(verbs, "-")
	_, err := clientOf(t, in).RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role},
		Rules: []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{tenancy.Group}, Resources: []string{"workspaces"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allow(t, in, name, role)
}

// moveRefusals tries moves that no user may make.
func moveRefusals(t *testing.T, s atoll, root, to *rest.Config) {
	t.Helper()
	refused := func(err error, why string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %v", why, err)
		}
	}
	refused(moveWorkspace(t, to, "to", "x"), "cannot move into itself")
	refused(moveWorkspace(t, s.workspace(t, "to:w"), "to", "x"), "cannot move into itself")
	path := "long"
	s.createWorkspace(t, "long")
	for i := range 6 {
		s.createNested(t, path, fmt.Sprintf("n%d", i))
		path += fmt.Sprintf(":n%d", i)
	}
	s.createNested(t, "to", "v")
	eventually(t, "all are Ready", func(ctx context.Context) error {
		err := moveWorkspace(t, root, "long", "longer")
		if err != nil && strings.Contains(err.Error(), "is not Ready") {
			return err
		}
		if err != nil {
			t.Error(err)
		}
		return nil
	})
	workspaceIs(t, root, "longer", tenancy.WorkspaceReady, "Served", "")
	eventually(t, "too deep", func(context.Context) error {
		if err := moveWorkspace(t, s.workspace(t, "to:v"), "longer", "x"); err == nil || !strings.Contains(err.Error(), "more than 8 names") {
			return fmt.Errorf("want a refusal: %w", err)
		}
		return nil
	})
	s.mustKubectl(t, "", "label", "workspace", "longer", "fleet.atoll.dev/deletion-protected=true")
	eventually(t, "protected", func(context.Context) error { // the server may know the label a moment later
		if err := moveWorkspace(t, root, "longer", "x"); err == nil || !strings.Contains(err.Error(), "is protected from deletion") {
			return fmt.Errorf("want a refusal: %w", err)
		}
		return nil
	})
	s.mustKubectl(t, "", "label", "workspace", "longer", "fleet.atoll.dev/deletion-protected-")
	limited := s.createWorkspace(t, "limited")
	s.setLimits(t, "limited", `{"objects": 1000}`)
	eventually(t, "limits", func(context.Context) error {
		if err := moveWorkspace(t, limited, "from", "x"); err == nil || !strings.Contains(err.Error(), "spec.limits.objects is missing") {
			return fmt.Errorf("want a refusal: %w", err)
		}
		return nil
	})
}
