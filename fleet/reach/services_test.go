package reach

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestServiceProxy: a request to a Service reaches a cluster that has its copy and answers; to a node, its cluster.
func TestServiceProxy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west", "north")
	f.control.Merge(v1alpha1.ClusterResource, "", "west", `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"ClusterUnreachable"}]}}`)
	state := func(cluster, uid string) map[string]any {
		return map[string]any{"name": cluster, "uid": uid, "health": "Healthy", "lastUpdateTime": "2026-01-01T00:00:00Z"}
	}
	f.control.Put(map[string]any{"apiVersion": v1alpha1.Group + "/v1alpha1", "kind": "ResourceBinding",
		"metadata": map[string]any{"namespace": "shop", "name": v1alpha1.BindingName(serviceKind(), "web")},
		"spec": map[string]any{"resource": map[string]any{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1"},
			"clusters": []any{map[string]any{"name": "east"}, map[string]any{"name": "west"}, map[string]any{"name": "north"}}},
		"status": map[string]any{"clusters": []any{state("east", "e"), state("west", "w"), state("north", "")}}})
	f.streams = func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.RequestURI(), " ", identityOf(r)) }
	services := f.frontOf(func(r *http.Request) (http.Handler, error) {
		return f.reach.ConnectService(r.Context(), "shop", "http:web:80", r.URL.Path, refusal{})
	})
	for range 8 { // west does not answer, and north has none yet
		if code, answer := f.send(services, http.MethodGet, "/a/b?q=1", ""); code != http.StatusOK || answer != "/api/v1/namespaces/shop/services/http:web:80/proxy/a/b?q=1 [Authorization: Bearer t]" {
			t.Errorf("%d %s", code, answer)
		}
	}
	none := f.frontOf(func(r *http.Request) (http.Handler, error) {
		return f.reach.ConnectService(r.Context(), "shop", "none", r.URL.Path, refusal{})
	})
	if code, answer := f.send(none, http.MethodGet, "/", ""); code != http.StatusServiceUnavailable || !strings.Contains(answer, "is in no cluster yet") {
		t.Errorf("%d %s", code, answer)
	}
	for name, want := range map[string]string{"east.n.1": "200 /api/v1/nodes/n.1/proxy/metrics", "none.n": "404", "plain": "404", "west.n": "503 cluster west"} {
		nodes := f.frontOf(func(r *http.Request) (http.Handler, error) {
			return f.reach.ConnectNode(r.Context(), name, "/metrics", refusal{})
		})
		if code, answer := f.send(nodes, http.MethodGet, "/", ""); !strings.HasPrefix(fmt.Sprint(code, " ", answer), want) {
			t.Errorf("%s: %d %s, want %s", name, code, answer, want)
		}
	}
}
