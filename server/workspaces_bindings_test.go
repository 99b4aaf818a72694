package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// withCertificate returns the configuration of a user whose certificate the server's authority signed.
func withCertificate(t *testing.T, config *rest.Config, dataDir, name string) *rest.Config {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(filepath.Join(dataDir, "pki", "ca.crt"), filepath.Join(dataDir, "pki", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		authority.Leaf, &key.PublicKey, authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	as := rest.AnonymousClientConfig(config)
	as.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	as.KeyData = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
	return as
}

func clientsOf(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

var sharedWidgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

const widgetDefinition = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, scope: Namespaced,
	names: {plural: widgets, singular: widget, kind: Widget}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`

func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}}
}

func export(resources ...string) *unstructured.Unstructured {
	var list []any
	for _, r := range resources {
		list = append(list, map[string]any{"group": "example.com", "resource": r})
	}
	return object("APIExport", "widgets", map[string]any{"resources": list})
}

func bindingTo(path string) *unstructured.Unstructured {
	return object("APIBinding", "widgets", map[string]any{"export": map[string]any{"path": path, "name": "widgets", "workspaceUID": "forged"}})
}

// TestWorkspaceBindings: users with the verb bind for an export bind their workspaces to it, and no other user does. Consumers have objects
// of their own. They come and go with the export, and not with another workspace that gets the exporter's path.
func TestWorkspaceBindings(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, server.Config{DataDir: dir})
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	exporter, c1, c2 := s.createWorkspace(t, "exporter"), s.createWorkspace(t, "c1"), s.createWorkspace(t, "c2")
	provide := func() {
		t.Helper()
		s.mustKubectl(t, widgetDefinition, "--server="+exporter.Host, "create", "-f", "-")
		if _, err := clientsOf(t, exporter).Resource(tenancy.APIExportResource).Create(t.Context(), export("widgets"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	provide()
	// bob is the administrator of c1, and has no permissions in the exporter.
	admins := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bob"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}}}
	if _, err := clientOf(t, c1).RbacV1().ClusterRoleBindings().Create(t.Context(), admins, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bob := withCertificate(t, c1, dir, "bob")
	bind := func(as *rest.Config, path string) error {
		_, err := clientsOf(t, as).Resource(tenancy.APIBindingResource).Create(t.Context(), bindingTo(path), metav1.CreateOptions{})
		return err
	}
	refused := func(err error, why string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %v", why, err)
		}
	}
	const lacks = "or you lack the verb bind"
	refused(bind(bob, "exporter"), lacks)
	refused(bind(bob, "missing"), lacks)
	refused(bind(bob, "exporter:../c2"), lacks)
	asAdmin := rest.CopyConfig(bob)
	asAdmin.Impersonate = rest.ImpersonationConfig{UserName: "atoll-admin", Groups: []string{"system:masters"}}
	refused(bind(asAdmin, "exporter"), "impersonated users")

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bind"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"bind"}, APIGroups: []string{"tenancy.atoll.dev"}, Resources: []string{"apiexports"}, ResourceNames: []string{"widgets"}}}}
	if _, err := clientOf(t, exporter).RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	admins.RoleRef.Name = "bind"
	if _, err := clientOf(t, exporter).RbacV1().ClusterRoleBindings().Create(t.Context(), admins, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := bind(bob, "exporter"); err != nil {
		t.Fatal(err)
	}
	if err := bind(c2, "exporter"); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"spec":{"export":{"path":"c2"}}}`)
	_, err := clientsOf(t, bob).Resource(tenancy.APIBindingResource).Patch(t.Context(), "widgets", types.MergePatchType, patch, metav1.PatchOptions{})
	refused(err, "spec does not change")
	second := bindingTo("exporter")
	second.SetName("second")
	_, err = clientsOf(t, bob).Resource(tenancy.APIBindingResource).Create(t.Context(), second, metav1.CreateOptions{})
	refused(err, "by APIBinding widgets")
	if out, err := s.kubectl(t, widgetDefinition, "--server="+c1.Host, "create", "-f", "-"); err == nil || !strings.Contains(out, "gets the group example.com") {
		t.Errorf("a definition in the bound group: %v: %s", err, out)
	}
	builtIn := object("APIExport", "widgets", map[string]any{"resources": []any{map[string]any{"group": "apps", "resource": "deployments"}}})
	if _, err := clientsOf(t, c2).Resource(tenancy.APIExportResource).Create(t.Context(), builtIn, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	third := s.createWorkspace(t, "c3")
	refused(bind(third, "c2"), "all workspaces have the group apps")
	s.mustKubectl(t, widgetDefinition, "--server="+third.Host, "create", "-f", "-")
	refused(bind(third, "exporter"), "CustomResourceDefinitions in the group example.com")

	create := func(in *rest.Config, name string) error {
		_, err := clientsOf(t, in).Resource(sharedWidgets).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}}}, metav1.CreateOptions{})
		return err
	}
	for name, in := range map[string]*rest.Config{"one": bob, "two": c2, "own": exporter} {
		eventually(t, "widgets are served in "+in.Host, func(context.Context) error { return create(in, name) })
	}
	for name, in := range map[string]*rest.Config{"one": c1, "two": c2, "own": exporter} {
		list, err := clientsOf(t, in).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != name {
			t.Errorf("%s has %v, %v", in.Host, list, err)
		}
	}
	if out := s.mustKubectl(t, "", "--server="+c1.Host, "get", "widgets,apibindings"); !strings.Contains(out, "one") || !strings.Contains(out, "exporter") {
		t.Error(out)
	}

	exports := clientsOf(t, exporter).Resource(tenancy.APIExportResource)
	has := func() error {
		_, err := clientsOf(t, c1).Resource(sharedWidgets).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{})
		return err
	}
	lost := func(how string) {
		t.Helper()
		if err := has(); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", how, err)
		}
	}
	if _, err := exports.Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"spec":{"resources":[{"group":"example.com","resource":"gadgets"}]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	lost("no longer exported")
	if err := exports.Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	lost("the export is deleted")
	if _, err := exports.Create(t.Context(), export("widgets"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := has(); err != nil {
		t.Errorf("exported again: %v", err)
	}
	watch, err := clientsOf(t, c1).Resource(sharedWidgets).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	s.mustKubectl(t, "", "delete", "workspace", "exporter")
	for range watch.ResultChan() { // it ends
	}
	lost("the exporter is deleted")
	s.createWorkspace(t, "exporter")
	provide()
	eventually(t, "the new workspace serves its own widgets", func(context.Context) error { return create(exporter, "own") })
	lost("another workspace has the exporter's path")
	if err := clientsOf(t, c1).Resource(tenancy.APIBindingResource).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	refused(bind(bob, "exporter"), lacks)
	if err := bind(c1, "exporter"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the objects are there again", func(context.Context) error { return has() })
}
