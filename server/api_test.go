package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestAnonymousHealthOnly(t *testing.T) {
	s := theServer(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for path, want := range map[string]int{
		"/healthz":           http.StatusOK,
		"/livez":             http.StatusOK,
		"/readyz":            http.StatusOK,
		"/readyz/keyspace":   http.StatusUnauthorized,
		"/version":           http.StatusUnauthorized,
		"/api/v1/namespaces": http.StatusUnauthorized,
		"/metrics":           http.StatusUnauthorized,
	} {
		resp, err := client.Get(s.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s without credentials: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestHealthNamesTheKeyspace(t *testing.T) {
	out, err := theServer(t).client(t).Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "[+]keyspace ok") || strings.Contains(string(out), "etcd") {
		t.Errorf("readyz names the wrong storage:\n%s", out)
	}
	// A failing database must not cause a restart of the server.
	out, err = theServer(t).client(t).Discovery().RESTClient().Get().AbsPath("/livez").Param("verbose", "").DoRaw(t.Context())
	if err != nil || strings.Contains(string(out), "keyspace") {
		t.Errorf("livez: %v\n%s", err, out)
	}
}

func TestMetricsIncludeDatabase(t *testing.T) {
	out, err := theServer(t).client(t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, metric := range []string{"apiserver_storage_size_bytes{", `atoll_kv_commit_seconds_count{workspace="default"}`,
		`atoll_kv_revision{workspace="default"}`, `atoll_kv_history_changes{workspace="default"}`} {
		if !strings.Contains(string(out), "\n"+metric) {
			t.Errorf("no metric %s", metric)
		}
	}
}

func TestServiceAccountTokenAndRBAC(t *testing.T) { inEachAPI(t, testServiceAccountTokenAndRBAC) }

func testServiceAccountTokenAndRBAC(t *testing.T, s atoll) {
	admin, ns := s.client(t), s.namespace(t)
	ctx := t.Context()
	eventually(t, "the default service account and the root certificate appear", func(ctx context.Context) error {
		if _, err := admin.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := admin.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	token, err := admin.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	root, err := admin.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := kubernetes.NewForConfig(&rest.Config{
		Host:            s.URL(),
		BearerToken:     token.Status.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: []byte(root.Data["ca.crt"])},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pod.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("list Secrets without a role: %v, want Forbidden", err)
	}
	if _, err := admin.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "default"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The role "edit" is aggregated by a controller.
	eventually(t, "the role takes effect", func(ctx context.Context) error {
		_, err := pod.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
		return err
	})
}

func TestLegacyServiceAccountTokenSecret(t *testing.T) {
	inEachAPI(t, testLegacyServiceAccountTokenSecret)
}

func testLegacyServiceAccountTokenSecret(t *testing.T, s atoll) {
	admin, ns := s.client(t), s.namespace(t)
	// A token of an account that does not exist is deleted.
	eventually(t, "the default service account appears", func(ctx context.Context) error {
		_, err := admin.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if _, err := admin.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the controller fills in the token", func(ctx context.Context) error {
		secret, err := admin.CoreV1().Secrets(ns).Get(ctx, "token", metav1.GetOptions{})
		if err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = fmt.Errorf("Secret has no token")
		}
		return err
	})
}

func TestCustomResources(t *testing.T) { inEachAPI(t, testCustomResources) }

func testCustomResources(t *testing.T, s atoll) {
	ns := s.namespace(t)
	s.mustKubectl(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.test.atoll.dev}
spec:
  group: test.atoll.dev
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, shortNames: [bt]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.masts, statusReplicasPath: .status.masts}}
    additionalPrinterColumns: [{name: Masts, type: integer, jsonPath: .spec.masts}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {masts: {type: integer, minimum: 1, description: "How many masts."}}}
          status: {type: object, properties: {masts: {type: integer}}}
`, "apply", "-f", "-")
	t.Cleanup(func() {
		_ = s.dynamic(t).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
			Delete(context.Background(), "boats.test.atoll.dev", metav1.DeleteOptions{})
	})
	s.mustKubectl(t, "", "wait", "--for=condition=Established", "crd/boats.test.atoll.dev", "--timeout=30s")
	boat := `{apiVersion: test.atoll.dev/v1, kind: Boat, metadata: {name: kon, namespace: ` + ns + `}, spec: {masts: %d}}`
	if out, err := s.kubectl(t, fmt.Sprintf(boat, 0), "apply", "-f", "-"); err == nil || !strings.Contains(out, "should be greater than or equal to 1") {
		t.Errorf("an invalid boat: %v\n%s", err, out)
	}
	s.mustKubectl(t, fmt.Sprintf(boat, 2), "apply", "-f", "-")
	s.mustKubectl(t, "", "scale", "-n", ns, "boat/kon", "--replicas=3")
	if out := s.mustKubectl(t, "", "get", "-n", ns, "bt"); !strings.Contains(out, "MASTS") || !strings.Contains(out, "kon    3") {
		t.Errorf("columns of a custom resource:\n%s", out)
	}
	eventually(t, "kubectl explains the new kind", func(context.Context) error {
		out, err := s.kubectl(t, "", "explain", "boat.spec.masts")
		if err == nil && !strings.Contains(out, "How many masts.") {
			err = fmt.Errorf("explain printed:\n%s", out)
		}
		return err
	})

	t.Run("garbage collection notices the new kind", func(t *testing.T) {
		boats := s.dynamic(t).Resource(schema.GroupVersionResource{Group: "test.atoll.dev", Version: "v1", Resource: "boats"}).Namespace(ns)
		owner, err := boats.Get(t.Context(), "kon", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		dinghy := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "test.atoll.dev/v1", "kind": "Boat", "metadata": map[string]any{"name": "dinghy"}}}
		dinghy.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "test.atoll.dev/v1", Kind: "Boat", Name: "kon", UID: owner.GetUID()}})
		if _, err := boats.Create(t.Context(), dinghy, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := boats.Delete(t.Context(), "kon", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the owned object is deleted with its owner", func(ctx context.Context) error {
			return gone(boats.Get(ctx, "dinghy", metav1.GetOptions{}))
		})
	})

	t.Run("quota counts the new kind", func(t *testing.T) {
		if _, err := s.client(t).CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "few-boats"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/boats.test.atoll.dev": resource.MustParse("1")}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// If the kind is discovered only after the quota was created, the next quota
		// resync counts it.
		within(t, time.Minute, "the quota is computed", func(ctx context.Context) error {
			q, err := s.client(t).CoreV1().ResourceQuotas(ns).Get(ctx, "few-boats", metav1.GetOptions{})
			if err == nil && len(q.Status.Used) == 0 {
				err = fmt.Errorf("nothing counted yet")
			}
			return err
		})
		s.mustKubectl(t, strings.Replace(fmt.Sprintf(boat, 1), "kon", "first", 1), "apply", "-f", "-")
		out, err := s.kubectl(t, strings.Replace(fmt.Sprintf(boat, 1), "kon", "second", 1), "apply", "-f", "-")
		if err == nil || !strings.Contains(out, "exceeded quota: few-boats") {
			t.Errorf("a boat beyond the quota: %v\n%s", err, out)
		}
	})
}

// gone returns nil if a Get returned NotFound.
func gone[T any](_ T, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return fmt.Errorf("the object still exists")
	default:
		return err
	}
}

func TestNamespaceDeletionEmptiesIt(t *testing.T) { inEachAPI(t, testNamespaceDeletionEmptiesIt) }

func testNamespaceDeletionEmptiesIt(t *testing.T, s atoll) {
	client, ns := s.client(t), s.namespace(t)
	for i := range 20 {
		createConfigMap(t, client, ns, fmt.Sprintf("map-%d", i))
	}
	s.mustKubectl(t, "", "create", "deployment", "web", "--image=nginx", "-n", ns)
	if err := client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is deleted", func(ctx context.Context) error {
		return gone(client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}))
	})
	left, err := client.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("%d ConfigMaps left (%v)", len(left.Items), err)
	}
}

func createConfigMap(t *testing.T, client kubernetes.Interface, ns, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := client.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

func TestPagesShareOneRevision(t *testing.T) { inEachAPI(t, testPagesShareOneRevision) }

func testPagesShareOneRevision(t *testing.T, s atoll) {
	client, ns := s.client(t), s.namespace(t)
	const n = 25
	for i := range n {
		createConfigMap(t, client, ns, fmt.Sprintf("map-%02d", i))
	}
	var names []string
	opts := metav1.ListOptions{Limit: 10, FieldSelector: "metadata.name!=kube-root-ca.crt"}
	for {
		page, err := client.CoreV1().ConfigMaps(ns).List(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, cm := range page.Items {
			names = append(names, cm.Name)
		}
		if opts.Continue == "" {
			// Objects deleted after the first page are still in the later ones.
			if err := client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "map-24", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			break
		}
	}
	if len(names) != n || !slices.IsSorted(names) {
		t.Errorf("the pages have %d names: %v", len(names), names)
	}
}

func TestWatchDeliversInOrderAndBookmarks(t *testing.T) {
	inEachAPI(t, testWatchDeliversInOrderAndBookmarks)
}

func testWatchDeliversInOrderAndBookmarks(t *testing.T, s atoll) {
	client, ns := s.client(t), s.namespace(t)
	list, err := client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seconds := int64(10)
	w, err := client.CoreV1().Secrets(ns).Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 3 {
		if _, err := client.CoreV1().Secrets(ns).Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	bookmarks := 0
	// The server sends a last bookmark shortly before the watch times out.
	for event := range w.ResultChan() {
		secret, ok := event.Object.(*corev1.Secret)
		if !ok {
			t.Fatalf("watch delivered %#v", event.Object)
		}
		if event.Type == watch.Bookmark {
			bookmarks++
		} else {
			got = append(got, string(event.Type)+" "+secret.Name)
		}
	}
	if want := []string{"ADDED s0", "ADDED s1", "ADDED s2"}; !slices.Equal(got, want) {
		t.Errorf("watch delivered %v, want %v", got, want)
	}
	if bookmarks == 0 {
		t.Error("watch sent no bookmark")
	}
}

func TestConsistentReadsComeFromTheCache(t *testing.T) {
	// A streamed list needs progress notifications of the keyspace to know that the
	// cache has caught up; without them it would time out.
	s := theServer(t)
	client, ns := s.client(t), s.namespace(t)
	for i := range 50 {
		name := fmt.Sprintf("map-%d", i)
		created := createConfigMap(t, client, ns, name)
		list, err := client.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].UID != created.UID {
			t.Fatalf("list right after creating %s has %d items", name, len(list.Items))
		}
	}
}
