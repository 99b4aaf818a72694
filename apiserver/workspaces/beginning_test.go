package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/atoll-dev/atoll/apiserver/overlay"
)

// TestBeginning: a new workspace has all objects of its beginning, also if the first attempt failed after the keyspace was created, and
// a workspace that exists gets no more. Its namespaces have what every namespace has.
func TestBeginning(t *testing.T) {
	bob := &user.DefaultInfo{Name: "bob"}
	s := newStage(t)
	w := s.openKeyspace("a")
	failure := errors.New("the Workspace cannot be read")
	if err := s.server.Initialize(t.Context(), w, func(context.Context) (overlay.Beginning, error) { return overlay.Beginning{}, failure }); !errors.Is(err, failure) {
		t.Fatalf("an error of begin: %v", err)
	}
	begin := func(context.Context) (overlay.Beginning, error) {
		var many []*corev1.Namespace // more than one transaction can create
		for i := range 50 {
			many = append(many, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n-", i)}})
		}
		return overlay.Beginning{
			Owner: "alice",
			Namespaces: append(many, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop",
				Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"contact": "a@example.com"}}}),
			ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{{ObjectMeta: metav1.ObjectMeta{Name: "auditors"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}}}},
			Custom: []overlay.CustomObject{{Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Object: &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"colour": "red"}}}}},
		}, nil
	}
	if err := s.server.Initialize(t.Context(), w, begin); err != nil {
		t.Fatal(err)
	}
	namespace := s.want(200, s.as(alice, "GET", "/clusters/a/api/v1/namespaces/shop", "")).body
	for _, want := range []string{`"team":"a"`, `"kubernetes.io/metadata.name":"shop"`, `"contact":"a@example.com"`, `"phase":"Active"`, `"finalizers":["kubernetes"]`} {
		if !strings.Contains(namespace, want) {
			t.Errorf("the namespace lacks %s: %s", want, namespace)
		}
	}
	for _, name := range []string{"shop", "n-0", "n-49"} {
		s.want(200, s.as(alice, "GET", "/clusters/a/api/v1/namespaces/"+name+"/serviceaccounts/default", ""))
	}
	if data := s.want(200, s.as(alice, "GET", "/clusters/a/api/v1/namespaces/shop/configmaps/kube-root-ca.crt", "")).field(t, "data", "ca.crt"); data != testCA {
		t.Errorf("the certificates are %v", data)
	}
	s.want(200, s.as(bob, "GET", "/clusters/a/api/v1/namespaces/shop/configmaps", ""))
	s.want(403, s.as(bob, "GET", "/clusters/a/api/v1/namespaces/shop/secrets", ""))
	widget := &unstructured.Unstructured{}
	if err := s.server.Read(t.Context(), w, schema.GroupResource{Group: "example.com", Resource: "widgets"}, "w", widget); err != nil {
		t.Fatal(err)
	}
	if widget.GetUID() == "" || widget.GetGeneration() != 1 || widget.GetCreationTimestamp().Time.IsZero() {
		t.Errorf("the custom resource is %v", widget.Object)
	}

	s.want(200, s.as(alice, "DELETE", "/clusters/a/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/auditors", ""))
	if err := s.server.Initialize(t.Context(), w, begin); err != nil {
		t.Fatal(err)
	}
	s.want(404, s.as(alice, "GET", "/clusters/a/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/auditors", ""))
}
