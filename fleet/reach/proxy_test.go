package reach

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// clusters serves the APIs of clusters as Atoll's API server does, at /CLUSTER/PATH.
func (f *fixture) clusters() *url.URL {
	f.t.Helper()
	return f.frontOf(func(r *http.Request) (http.Handler, error) {
		cluster, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		return f.reach.ConnectCluster(r.Context(), cluster, "/"+path, refusal{})
	})
}

// send sends a request with headers that name another user.
func (f *fixture) send(at *url.URL, method, path, body string) (code int, answer string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, at.String()+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, header := range []string{"Authorization: Bearer of-the-user", "Cookie: a=b", "Impersonate-User: root", "Impersonate-Extra-Scopes: all", "X-Remote-User: root", "X-Remote-Group: system:masters",
		"Sec-Websocket-Protocol: base64url.bearer.authorization.k8s.io.dG9rZW4, v5.channel.k8s.io", "Content-Type: application/json"} {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	got, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return got.StatusCode, string(text)
}

// TestClusterProxy: requests of all methods reach any path of a cluster's API, with the credentials of the cluster's kubeconfig
// and none of the user's.
func TestClusterProxy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.streams = func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %v %v %s", r.Method, r.URL.RequestURI(), identityOf(r), r.Header["Sec-Websocket-Protocol"], body)
	}
	at := f.clusters()
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		code, answer := f.send(at, method, "/east/any/proxy/a%20b/?q=1&q=%2F", "the body")
		if want := method + " /any/proxy/a%20b/?q=1&q=%2F [Authorization: Bearer t] [ v5.channel.k8s.io] the body"; code != http.StatusTeapot || answer != want {
			t.Errorf("%d %s, want %s", code, answer, want)
		}
	}
	if code, answer := f.send(at, http.MethodPost, "/east/api/v1/namespaces/shop/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"made"}}`); code != http.StatusCreated {
		t.Errorf("%d %s", code, answer)
	}
	if f.members["east"].Get(resource("", "pods"), "shop", "made") == nil {
		t.Error("the pod is not in the cluster")
	}
}

// TestClusterProxyStreams: events of a watch are passed on as they come.
func TestClusterProxyStreams(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	answer, err := http.Get(f.clusters().String() + "/east/api/v1/namespaces/shop/pods?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for _, name := range []string{"one", "two"} {
		f.pod("east", "shop", name, "")
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, name) {
			t.Fatalf("%s %v", line, err)
		}
	}
}

// TestClusterProxyUpgrades: a connection into a container of any pod passes both ways.
func TestClusterProxyUpgrades(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	const path = "/api/v1/namespaces/kube-system/pods/b/exec"
	f.upgrades(f.clusters().Host, "/east"+path, path)
}

// TestClusterProxyFailures: a request that reaches no cluster is answered with the cause and the remedy.
func TestClusterProxyFailures(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "silent", "gone")
	f.control.Put(map[string]any{"apiVersion": v1alpha1.Group + "/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": "pulls"}, "spec": map[string]any{"mode": "Pull"}})
	f.control.Merge(v1alpha1.ClusterResource, "", "silent", `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"ClusterUnreachable"}]}}`)
	f.control.Delete(resource("", "secrets"), v1alpha1.SystemNamespace, "gone")
	f.streams = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/away"):
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		case strings.HasSuffix(r.URL.Path, "/stranger"):
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		case strings.HasSuffix(r.URL.Path, "/cut"):
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, "the cluster refuses", http.StatusForbidden)
		}
	}
	at := f.clusters()
	for _, tt := range []struct {
		path  string
		code  int
		words []string
	}{
		{"/none/api", http.StatusNotFound, []string{`clusters.fleet.atoll.dev "none" not found`}},
		{"/pulls/api", http.StatusServiceUnavailable, []string{"cluster pulls", "mode Pull", "with --reach all"}},
		{"/silent/api", http.StatusServiceUnavailable, []string{"cluster silent", "unreachable", "kubectl describe cluster silent"}},
		{"/gone/api", http.StatusServiceUnavailable, []string{"cluster gone", "Secret atoll-system/gone", "atoll join gone"}},
		{"/east/any/proxy/cut", http.StatusServiceUnavailable, []string{"cluster east did not answer", "kubectl describe cluster east"}},
		{"/east/any/proxy/stranger", http.StatusServiceUnavailable, []string{"rejects the credentials", "atoll join east --kubeconfig FILE"}},
		{"/east/any/proxy/away", http.StatusBadGateway, []string{"redirect"}},
		{"/east/any/proxy/forbidden", http.StatusForbidden, []string{"the cluster refuses"}},
		{"/east/any/%2e%2e/west", http.StatusBadRequest, []string{"segment . or .."}},
	} {
		code, answer := f.send(at, http.MethodGet, tt.path, "")
		for _, word := range tt.words {
			if code != tt.code || !strings.Contains(answer, word) {
				t.Errorf("%s: %d %s, want %d and %q", tt.path, code, answer, tt.code, word)
			}
		}
	}
	f.control.Delete(v1alpha1.ClusterResource, "", "east")
	f.reach.members.expire()
	if code, answer := f.send(at, http.MethodGet, "/east/api", ""); code != http.StatusNotFound {
		t.Errorf("a cluster that has left: %d %s", code, answer)
	}
}

// expire makes the next request read the clusters again, as after statesTTL.
func (m *members) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = nil
}
