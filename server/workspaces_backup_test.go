package server_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// backups makes a request for a backup of a workspace.
func backups(t *testing.T, as *rest.Config, method, path string, body []byte) (code int, answer []byte) {
	t.Helper()
	client, err := rest.HTTPClientFor(as)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, as.Host+tenancy.BackupsPath+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, answer
}

// toRestore creates a workspace to restore into, and returns the path of the request.
func toRestore(t *testing.T, as *rest.Config, name string, limits map[string]any) string {
	t.Helper()
	spec := map[string]any{"source": map[string]any{"backup": true}}
	if limits != nil {
		spec["limits"] = limits
	}
	created, err := clientsOf(t, as).Resource(tenancy.WorkspaceResource).Create(t.Context(), object("Workspace", name, spec), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return name + "?uid=" + string(created.GetUID())
}

// TestWorkspaceBackup: an administrator of a workspace backs it up, and an administrator of a server restores it. The restored workspace has
// the objects, and tokens of its own. A server without the keys of encrypted objects refuses them, and restores others.
func TestWorkspaceBackup(t *testing.T) {
	dir, other := t.TempDir(), theServer(t)
	s := newServer(t, server.Config{DataDir: dir})
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	root, original := s.config(t), s.createWorkspace(t, "original")
	fillOriginal(t, s, original)
	bob := withCertificate(t, root, dir, "bob")
	refused := func(as *rest.Config, method, path string, body []byte, want int, why string) {
		t.Helper()
		if code, answer := backups(t, as, method, path, body); code != want || !strings.Contains(string(answer), why) {
			t.Errorf("%s %s: %d %.200s, want %d %s", method, path, code, answer, want, why)
		}
	}
	const lacks = "or you lack all permissions in it"
	refused(bob, "GET", "original", nil, 403, lacks)
	refused(bob, "GET", "missing", nil, 403, lacks)
	refused(bob, "GET", "original/../original", nil, 403, lacks)
	asAdmin := rest.CopyConfig(root)
	asAdmin.Impersonate = rest.ImpersonationConfig{UserName: "atoll-admin", Groups: []string{"system:masters"}}
	refused(asAdmin, "GET", "original", nil, 403, "impersonated users")
	refused(rest.AnonymousClientConfig(root), "GET", "original", nil, 401, "")
	allow(t, original, "bob", "cluster-admin")
	code, backup := backups(t, bob, "GET", "original", nil)
	if code != 200 {
		t.Fatalf("%d: %.200s", code, backup)
	}

	allow(t, root, "bob", "cluster-admin")
	eventually(t, "bob may do everything in the root", func(ctx context.Context) error {
		_, err := clientOf(t, bob).CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
		return err
	})
	_, err := clientsOf(t, bob).Resource(tenancy.WorkspaceResource).Create(t.Context(), object("Workspace", "restored", map[string]any{"source": map[string]any{"backup": true}}), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:masters") {
		t.Errorf("a user without system:masters: %v", err)
	}
	at := toRestore(t, root, "restored", map[string]any{"objects": int64(3)})
	workspaceIs(t, root, "restored", tenancy.WorkspacePending, "Restoring", "its backup is not restored yet")
	refused(bob, "PUT", at, backup, 403, "system:masters")
	refused(root, "PUT", "restored?uid=other", backup, 404, "is another one")
	refused(root, "PUT", "original?uid="+uidOf(t, root, "original"), backup, 409, "not one to restore into")
	refused(root, "PUT", at, backup[:len(backup)-9], 400, "not a complete backup")
	damaged := slices.Clone(backup)
	damaged[len(damaged)/2] ^= 1
	refused(root, "PUT", at, damaged, 400, "not a complete backup")
	refused(root, "PUT", at+"&keyspace=default", backup, 400, "not that of a workspace")
	refused(root, "PUT", at, backup, 403, "the backup has more objects than spec.limits.objects permits, which is 3")
	s.setLimits(t, "restored", `null`)
	if code, answer := backups(t, root, "PUT", at, backup); code != 204 {
		t.Fatalf("restore: %d %s", code, answer)
	}
	workspaceIs(t, root, "restored", tenancy.WorkspaceReady, "Served", "")
	refused(root, "PUT", at, backup, 409, "is restored already")
	crossTokens(t, original, s.workspace(t, "restored"))
	secret, err := clientOf(t, s.workspace(t, "restored")).CoreV1().Secrets("default").Get(t.Context(), "opaque", metav1.GetOptions{})
	if err != nil || string(secret.Data["key"]) != "secret" {
		t.Errorf("a Secret of the restored workspace: %v, %v", secret, err)
	}

	elsewhere := other.config(t)
	at = toRestore(t, elsewhere, "moved-secrets", nil)
	refused(elsewhere, "PUT", at, backup, 422, "this server lacks the key that /registry/secrets/")
	other.mustKubectl(t, "", "delete", "workspace", "moved-secrets")
	other.gone(t, "moved-secrets")
	plain := s.createWorkspace(t, "plain")
	if _, err := clientOf(t, plain).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, backup = backups(t, root, "GET", "plain", nil)
	if code, answer := backups(t, elsewhere, "PUT", toRestore(t, elsewhere, "moved", nil), backup); code != 204 {
		t.Fatalf("restore elsewhere: %d %s", code, answer)
	}
	workspaceIs(t, elsewhere, "moved", tenancy.WorkspaceReady, "Served", "")
	if _, err := clientOf(t, other.workspace(t, "moved")).CoreV1().ConfigMaps("default").Get(t.Context(), "config", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	other.mustKubectl(t, "", "delete", "workspace", "moved")
}

func uidOf(t *testing.T, in *rest.Config, name string) string {
	t.Helper()
	w, err := clientsOf(t, in).Resource(tenancy.WorkspaceResource).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(w.GetUID())
}
