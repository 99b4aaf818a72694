package server_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// echoes joins a cluster that answers each request with its method, path, user and body.
func (a atoll) echoes(t *testing.T, cluster string) {
	t.Helper()
	a.joinMember(t, cluster, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		fmt.Fprintf(w, "%s %s for %q by %s: %s", r.Method, r.URL.RequestURI(), r.Header.Get("Impersonate-User"), r.Header.Get("Authorization"), body)
	}))
}

// joinMember joins a cluster with an API of its own.
func (a atoll) joinMember(t *testing.T, cluster string, api http.Handler) {
	t.Helper()
	member := httptest.NewTLSServer(api)
	t.Cleanup(func() { member.CloseClientConnections(); member.Close() })
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: member.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: member.Certificate().Raw})}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "of-atoll"}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := a.namespace(t)
	if _, err := a.client(t).CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: cluster},
		Type: v1alpha1.KubeconfigSecretType, Data: map[string][]byte{v1alpha1.KubeconfigSecretKey: data}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.dynamic(t).Resource(v1alpha1.ClusterResource).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster", "metadata": map[string]any{"name": cluster},
		"spec": map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": namespace, "name": cluster}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestClusterProxy: below clusters/proxy, a user has the API of a member by the rights on it in Atoll.
func TestClusterProxy(t *testing.T) {
	a := newServer(t, server.Config{DataDir: filepath.Join(t.TempDir(), "data")}) // the shared one has no clusters
	t.Cleanup(func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
	a.echoes(t, "echo")
	for name, verbs := range map[string][]string{"reader": {"get"}, "writer": {"get", "create"}} {
		a.mayProxy(t, "echo-"+name, "echo", verbs...)
	}
	send := func(user, method, path string, header http.Header) (code int, answer string) {
		t.Helper()
		config := a.config(t)
		if user != "" {
			config.Impersonate = rest.ImpersonationConfig{UserName: "echo-" + user}
		}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+"/apis/fleet.atoll.dev/v1alpha1/clusters/"+path, bytes.NewBufferString("the body"))
		if err != nil {
			t.Fatal(err)
		}
		for key, values := range header {
			r.Header[key] = values
		}
		got, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		return got.StatusCode, string(text)
	}
	for _, user := range []string{"reader", "writer"} {
		eventually(t, user+" reads", func(context.Context) error {
			if code, answer := send(user, http.MethodGet, "echo/proxy/api/v1/nodes?limit=1", nil); code != http.StatusOK || answer != `GET /api/v1/nodes?limit=1 for "" by Bearer of-atoll: the body` {
				return fmt.Errorf("%d %s", code, answer)
			}
			return nil
		})
	}
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	for _, tt := range []struct {
		user, method, path string
		header             http.Header
		code               int
		want               string
	}{
		{"writer", http.MethodPost, "echo/proxy/api/v1/nodes", nil, http.StatusOK, `POST /api/v1/nodes for ""`},
		{"writer", http.MethodGet, "echo/proxy/exec", upgrade, http.StatusServiceUnavailable, "invalid upgrade response: status code 200"}, // of the cluster
		{"writer", http.MethodPut, "echo/proxy/api/v1/nodes/a", nil, http.StatusForbidden, `cannot update resource \"clusters/proxy\"`},
		{"writer", http.MethodPatch, "echo/proxy/api/v1/nodes/a", nil, http.StatusForbidden, `cannot patch resource \"clusters/proxy\"`},
		{"writer", http.MethodDelete, "echo/proxy/api/v1/nodes/a", nil, http.StatusForbidden, `cannot delete resource \"clusters/proxy\"`},
		{"reader", http.MethodPost, "echo/proxy/api/v1/nodes", nil, http.StatusForbidden, `cannot create resource \"clusters/proxy\"`},
		{"reader", http.MethodGet, "echo/proxy/exec", upgrade, http.StatusForbidden, "the verb create is required"},
		{"reader", http.MethodGet, "other/proxy/api", nil, http.StatusForbidden, `cannot get resource \"clusters/proxy\"`},
		{"reader", http.MethodGet, "echo", nil, http.StatusForbidden, `cannot get resource \"clusters\"`},
		{"", http.MethodGet, "none/proxy/api", nil, http.StatusNotFound, `clusters.fleet.atoll.dev \"none\" not found`},
		{"", http.MethodGet, "echo/proxy", nil, http.StatusOK, "GET / for"},
		{"", http.MethodGet, "echo/proxy/", nil, http.StatusOK, "GET / for"},
		{"", http.MethodDelete, "echo/proxy/x/", nil, http.StatusOK, "DELETE /x/ for"},
	} {
		if code, answer := send(tt.user, tt.method, tt.path, tt.header); code != tt.code || !strings.Contains(answer, tt.want) {
			t.Errorf("%s %s by %q: %d %s, want %d %s", tt.method, tt.path, tt.user, code, answer, tt.code, tt.want)
		}
	}
	list, err := a.client(t).Discovery().ServerResourcesForGroupVersion(v1alpha1.Group + "/" + v1alpha1.Version)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Name == "clusters/proxy" && !r.Namespaced && slices.Contains(r.Verbs, "delete")
	}) {
		t.Errorf("discovery without clusters/proxy: %+v", list.APIResources)
	}
}

// mayProxy gives a user verbs on clusters/proxy of one cluster.
func (a atoll) mayProxy(t *testing.T, user, cluster string, verbs ...string) {
	t.Helper()
	roles := a.client(t).RbacV1()
	if _, err := roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.Group}, Resources: []string{"clusters/proxy"}, ResourceNames: []string{cluster}, Verbs: verbs}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
