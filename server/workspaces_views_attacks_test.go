package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestWorkspaceViewAttacks: a view needs a right in the exporter's workspace, and reaches objects of the exported resources in consumers,
// and nothing else.
func TestWorkspaceViewAttacks(t *testing.T) {
	s := newViewStage(t, "atk-")
	c1 := s.consumer("c1")
	s.create(clientsOf(t, c1).Resource(sharedWidgets), "w")
	s.createWorkspace(t, s.name+"stranger")
	forbidden := func(how string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", how, err)
		}
	}
	for _, target := range []string{"*", "c1", "missing"} {
		_, err := s.view(s.account, target).List(t.Context(), metav1.ListOptions{})
		forbidden("without the verb view, "+target, err)
		if err != nil && !strings.Contains(err.Error(), "the view needs the verb view for the APIExport widgets") {
			t.Error(err)
		}
	}
	s.permit("view")
	eventually(t, "the account has the verb", func(ctx context.Context) error {
		_, err := s.view(s.account, "c1").List(ctx, metav1.ListOptions{})
		return err
	})
	in1 := s.view(s.account, "c1").Namespace("default")
	_, err := in1.Create(t.Context(), sized("x", 1), metav1.CreateOptions{})
	forbidden("create without the verb manage", err)
	forbidden("delete without the verb manage", in1.Delete(t.Context(), "w", metav1.DeleteOptions{}))
	forbidden("delete all without the verb manage", in1.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	_, err = in1.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"status":{"a":1}}`), metav1.PatchOptions{}, "status")
	forbidden("change a status without the verb manage", err)
	as := rest.CopyConfig(s.account)
	as.Impersonate = rest.ImpersonationConfig{UserName: "atoll-admin", Groups: []string{"system:masters"}}
	_, err = s.view(as, "c1").List(t.Context(), metav1.ListOptions{})
	forbidden("impersonation without the right to it", err)
	s.permit("manage")
	eventually(t, "the account has the verb", func(ctx context.Context) error {
		_, err := in1.Create(ctx, sized("made", 1), metav1.CreateOptions{})
		return err
	})

	// Rights in the exporter are none in the consumer by its own path, and the other way around.
	direct := rest.AnonymousClientConfig(c1)
	direct.BearerToken = s.account.BearerToken
	if _, err := clientsOf(t, direct).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the exporter's account in the consumer: %v", err)
	}
	theirs := rest.AnonymousClientConfig(c1)
	theirs.BearerToken = s.tokenOf(c1, "controller")
	if _, err := s.view(theirs, "c1").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the consumer's account in the view: %v", err)
	}

	client, err := rest.HTTPClientFor(s.account)
	if err != nil {
		t.Fatal(err)
	}
	request := func(method, path, body string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	const view, widgets, inDefault = "/clusters/atk-exporter/apiexports/widgets/clusters/", "/apis/example.com/v1/widgets", "/apis/example.com/v1/namespaces/default/widgets"
	configMap := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`
	for _, attack := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", view + "atk-c1" + widgets, "", 200},
		{"GET", view + "*" + widgets, "", 200},
		{"GET", view + "%2A" + widgets, "", 200},
		{"GET", view + "atk-c1/apis", "", 200},
		{"GET", view + "atk-c1/apis/example.com/v1", "", 200},
		// Other kinds, in the consumer and in all.
		{"GET", view + "atk-c1/api/v1/secrets", "", 404},
		{"GET", view + "*/api/v1/secrets", "", 404},
		{"POST", view + "atk-c1/api/v1/namespaces/default/configmaps", configMap, 404},
		{"GET", view + "atk-c1/apis/apps/v1/deployments", "", 404},
		{"GET", view + "*/apis/apps/v1/deployments", "", 404},
		{"GET", view + "atk-c1/apis/rbac.authorization.k8s.io/v1/clusterroles", "", 404},
		{"GET", view + "atk-c1/apis/tenancy.atoll.dev/v1alpha1/apibindings", "", 404},
		{"GET", view + "atk-c1/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", 404},
		{"GET", view + "atk-c1/apis/example.com/v1/gadgets", "", 404},
		{"GET", view + "*/apis/example.com/v1/gadgets", "", 404},
		{"GET", view + "atk-c1/apis/apps/v1", "", 404},
		{"GET", view + "atk-c1/version", "", 404},
		{"GET", view + "atk-c1", "", 404},
		// Workspaces that are no consumers.
		{"GET", view + "atk-stranger" + widgets, "", 404},
		{"GET", view + "atk-missing" + widgets, "", 404},
		{"GET", view + "atk-exporter" + widgets, "", 404},
		// Verbs that make no sense for all.
		{"GET", view + "*" + inDefault + "/w", "", 405},
		{"POST", view + "*" + inDefault, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x"}}`, 405},
		{"DELETE", view + "*" + widgets, "", 405},
		{"GET", view + "*" + inDefault + "/w/status", "", 405},
		// Paths.
		{"GET", view + "%2a" + widgets, "", 404},
		{"GET", view + "atk-c%31" + widgets, "", 404},
		{"GET", view + "**" + widgets, "", 404},
		{"GET", view + "atk-c1:*" + widgets, "", 404},
		{"GET", view + "atk-c1//apis/example.com/v1/widgets", "", 404},
		{"GET", view + "atk-c1/../atk-stranger" + widgets, "", 404},
		{"GET", view + "*" + view + "atk-c1" + widgets, "", 404},
		{"GET", "/clusters/*" + widgets, "", 401},
		{"GET", "/clusters/%2A" + widgets, "", 401},
		{"GET", "/clusters/*/apiexports/widgets/clusters/atk-c1" + widgets, "", 401},
		{"GET", "/clusters/atk-exporter/apiexports/*/clusters/atk-c1" + widgets, "", 404},
		{"GET", "/clusters/atk-exporter/apiexports/widgets/clusters", "", 404},
		{"GET", "/clusters/atk-exporter/clusters/atk-c1" + widgets, "", 403},
		{"GET", "/clusters/atk-exporter/apiexports/missing/clusters/atk-c1" + widgets, "", 403},
		{"GET", "/clusters/atk-c1/apiexports/widgets/clusters/*" + widgets, "", 401},
		{"GET", "/apiexports/widgets/clusters/atk-c1" + widgets, "", 401},
	} {
		code, body := request(attack.method, attack.path, attack.body)
		if code != attack.want {
			t.Errorf("%s %s: %d, want %d: %.300s", attack.method, attack.path, code, attack.want, body)
		}
		if strings.Contains(attack.path, "c1/apis/example.com/v1") && attack.want == 200 && strings.Contains(body, "gadgets") {
			t.Errorf("%s has a resource that is not exported: %s", attack.path, body)
		}
	}
	if list, err := clientOf(t, c1).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("ConfigMaps of the consumer: %v, %v", list, err)
	}
	if list, err := clientsOf(t, s.exporter).Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("objects of the exporter: %v, %v", list, err)
	}
}
