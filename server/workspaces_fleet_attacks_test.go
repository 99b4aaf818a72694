package server_test

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceMemberAttacks: a member of a workspace gets nothing by the name of a member of the root or of another workspace. Its front proxy is no
// one on the member port, also if its Cluster has the name, and a SharedAPI of the root names it. The credential of a syncer of the root has no
// permission in a workspace with a Cluster of that name, and bootstrap tokens of a workspace are none.
func TestWorkspaceMemberAttacks(t *testing.T) {
	s := newServer(t, server.Config{DataDir: t.TempDir(), MemberAddress: outward(t)})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	s.createWorkspace(t, "pirates")
	pirates := s.in("pirates")
	defineWidgets(t, s.dynamic(t))
	east, pirate := newProxy(t, s), newProxy(t, s)
	joinByHand(t, s.dynamic(t), "east", east.authority)
	for _, name := range []string{"east", "pirate"} {
		joinByHand(t, pirates.dynamic(t), name, pirate.authority)
	}
	joinByHand(t, pirates.dynamic(t), "copied", east.authority) // the root's member stays the owner
	share := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "fleet.atoll.dev/v1alpha1", "kind": "SharedAPI", "metadata": map[string]any{"name": "widgets"},
		"spec": map[string]any{"groups": []any{"shared.example.org"}, "clusters": []any{"east", "pirate"}}}}
	if _, err := s.dynamic(t).Resource(v1alpha1.SharedAPIResource).Create(t.Context(), share, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const objects = "/apis/shared.example.org/v1/namespaces/default/widgets"
	east.eventually(t, http.StatusForbidden, http.MethodGet, objects, "", "alice")
	east.want(t, http.StatusForbidden, "east:alice", http.MethodGet, objects, "", "alice")
	for _, path := range []string{objects, "/api", "/apis/fleet.atoll.dev/v1alpha1/clusters", "/clusters/pirates" + objects, "/clusters/pirates/api/v1/secrets"} {
		pirate.want(t, http.StatusUnauthorized, "", http.MethodGet, path, "", "atoll-admin", "X-Remote-Group", "system:masters")
	}
	for _, path := range []string{"/clusters/pirates" + objects, "/clusters/pirates/api/v1/secrets"} {
		if code, answer := east.ask(t, http.MethodGet, path, "", "alice"); !slices.Contains([]int{http.StatusForbidden, http.StatusNotFound}, code) {
			t.Errorf("a member of the root at %s: %d %s", path, code, answer)
		}
	}

	syncer, _ := pull(t, s, "shore")
	joinByHand(t, pirates.dynamic(t), "shore", pirate.authority)
	for _, path := range []string{"/api/v1/secrets", "/apis/fleet.atoll.dev/v1alpha1/clusters/shore", "/apis/fleet.atoll.dev/v1alpha1/resourcebindings"} {
		if code, answer := syncer.send(t, http.MethodGet, "/clusters/pirates"+path, ""); code != http.StatusForbidden {
			t.Errorf("the syncer of the root's cluster shore at %s of the workspace: %d %s", path, code, answer)
		}
	}
	if code, answer := syncer.send(t, http.MethodGet, "/clusters/pirates/services/clusters/shore/api/v1/secrets", ""); !slices.Contains([]int{http.StatusForbidden, http.StatusNotFound}, code) {
		t.Errorf("a view below the workspace: %d %s", code, answer)
	}

	const token = "abcdef.0123456789abcdef"
	pirates.mustKubectl(t, `{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, metadata: {name: bootstrap-token-abcdef, namespace: kube-system, annotations: {`+v1alpha1.BootstrapClusterAnnotation+`: east}},
		stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-authentication: "true", auth-extra-groups: "`+v1alpha1.BootstrapGroup+`"}}`, "create", "-f", "-")
	for _, api := range []atoll{s, pirates} {
		config := rest.AnonymousClientConfig(api.config(t))
		config.BearerToken = token
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		if code, answer := (syncerCredential{s.URL(), config, client}).send(t, http.MethodGet, api.path+"/api", ""); code != http.StatusUnauthorized {
			t.Errorf("a bootstrap token of the workspace at %s: %d %s", config.Host, code, answer)
		}
	}
}

// TestWorkspaceIsNoMember: a Cluster whose kubeconfig leads to the API of its own workspace gets nothing, also where the network of the server is
// permitted.
func TestWorkspaceIsNoMember(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceMemberNetworks: loopbackMembers()})
	t.Cleanup(func() { _ = s.stop() })
	s.createWorkspace(t, "mirror")
	a := s.in("mirror")
	config := a.config(t)
	at, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	itself := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(at)
		r.Out.Header.Del("Authorization")
	}}
	if itself.Transport, err = rest.TransportFor(config); err != nil {
		t.Fatal(err)
	}
	a.joinMember(t, "self", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" { // a workspace has none of its own
			itself.ServeHTTP(w, r)
		}
	}))
	if message := a.awaitReason(t, "self", v1alpha1.ReasonWrongCluster); !strings.Contains(message, "this control plane itself") {
		t.Error(message)
	}
	if _, err := a.client(t).CoordinationV1().Leases("kube-system").Get(t.Context(), v1alpha1.ClaimLease, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the claim of the workspace on itself: %v", err)
	}
	a.mustKubectl(t, "", "delete", "cluster", "self", "--timeout=60s")
}
