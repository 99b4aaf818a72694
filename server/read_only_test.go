package server_test

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/server"
)

// TestReadOnly: the data can be read, and previews and reviews work. All changes are refused, and no controller
// runs.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	normal := newServer(t, server.Config{DataDir: dir, MemberPort: server.WithoutMemberPort})
	client := kubernetes.NewForConfigOrDie(normal.config(t))
	maps := client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := normal.stop(); err != nil {
		t.Fatal(err)
	}
	drill := newServer(t, server.Config{DataDir: dir, ReadOnly: true})
	defer func() {
		if err := drill.stop(); err != nil {
			t.Error(err)
		}
	}()
	client = kubernetes.NewForConfigOrDie(drill.config(t))
	maps = client.CoreV1().ConfigMaps("default")
	before, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "--read-only") {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	_, err = maps.Create(t.Context(), b, metav1.CreateOptions{})
	refused("create", err)
	_, err = maps.Update(t.Context(), before, metav1.UpdateOptions{})
	refused("update", err)
	_, err = maps.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"x":"y"}}`), metav1.PatchOptions{})
	refused("patch", err)
	refused("delete", maps.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	refused("delete all", maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	refused("exec", client.CoreV1().RESTClient().Get().Namespace("default").Resource("pods").Name("p").SubResource("exec").Do(t.Context()).Error())
	if err := client.RESTClient().Put().AbsPath("/services/clusters/east/apis").Do(t.Context()).Error(); err == nil {
		t.Error("a syncer reports something")
	}
	if _, err := maps.Create(t.Context(), b, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("a preview: %v", err)
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}}}
	if _, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{}); err != nil {
		t.Errorf("a review: %v", err)
	}
	after, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("%v, %v", after, err)
	}
	leases, err := client.CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Items {
		if l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" {
			t.Errorf("Lease %s/%s is held by %s", l.Namespace, l.Name, *l.Spec.HolderIdentity)
		}
	}
	if _, err := server.New(t.Context(), server.Config{DataDir: t.TempDir(), ReadOnly: true, Partitions: []string{"events"}}); err == nil || !strings.Contains(err.Error(), "--partitions") {
		t.Error(err)
	}
}
