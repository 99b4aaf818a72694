package view

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// TestViewContainsBoundObjects: a syncer sees the objects that are bound to its cluster,
// transformed for it, and nothing of other clusters.
func TestViewContainsBoundObjects(t *testing.T) {
	s := newFixture(t, secret("both"), secret("mine"), secret("theirs"), secret("nobodys"),
		bind("both", "east", "west"), bind("mine", "east"), bind("theirs", "west", "south"))
	for path, want := range map[string][]string{
		"/api/v1/secrets":                                    {"both", "mine"},
		"/api/v1/namespaces/shop/secrets":                    {"both", "mine"},
		"/api/v1/namespaces/other/secrets":                   {},
		"/api/v1/secrets?fieldSelector=metadata.name%3Dmine": {"mine"},
		"/apis/" + apiVersion + "/boundobjects":              {"secret-both", "secret-mine"},
		"/apis/" + apiVersion + "/clusters":                  {"east"},
		"/apis/" + apiVersion + "/boundnamespaces":           {"shop"},
		"/api/v1/configmaps":                                 {},
	} {
		code, text := s.ask(syncerOf("east"), "GET", eastView+path, nil)
		var got struct {
			Items []struct{ Metadata metav1.ObjectMeta }
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, text)
			continue
		}
		var names []string
		for _, item := range got.Items {
			names = append(names, item.Metadata.Name)
		}
		if fmt.Sprint(names) != fmt.Sprint(want) {
			t.Errorf("%s: has %v, want %v", path, names, want)
		}
		for _, foreign := range []string{"west", "south", "theirs", "nobodys", "unseen"} {
			if strings.Contains(text, foreign) {
				t.Errorf("%s contains %q:\n%s", path, foreign, text)
			}
		}
	}
	code, text := s.ask(syncerOf("east"), "GET", eastView+"/api/v1/namespaces/shop/secrets/mine", nil)
	var got unstructured.Unstructured
	if err := got.UnmarshalJSON([]byte(text)); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	if got.GetUID() != "uid-mine" || got.GetGeneration() != 3 || got.GetAnnotations()[v1alpha1.ClusterAnnotation] != "east" ||
		got.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "uid-mine" || got.GetLabels()[v1alpha1.ManagedLabel] != "true" {
		t.Errorf("the object is not transformed: %s", text)
	}
}

// TestViewRejects: requests beyond the view are rejected with the right code.
func TestViewRejects(t *testing.T) {
	s := newFixture(t, secret("mine"), secret("theirs"), bind("mine", "east"), bind("theirs", "west"), secret("free"))
	state := func(name string) map[string]any {
		return map[string]any{"state": map[string]any{"name": name, "health": "Healthy", "lastUpdateTime": "2026-01-01T00:00:00Z"}}
	}
	own := eastView + "/apis/" + apiVersion
	bound := own + "/namespaces/shop/boundobjects/"
	report := func(uid string, status map[string]any) map[string]any {
		return map[string]any{"metadata": map[string]any{"uid": uid}, "status": status}
	}
	other := syncerOf("east")
	other.Groups = []string{v1alpha1.SyncersGroup, v1alpha1.CredentialGroupPrefix + "old"}
	bare := Caller{Name: v1alpha1.SyncerUser("east")}
	anybody := Caller{Name: "jane"}
	for _, c := range []struct {
		who          Caller
		method, path string
		body         any
		code         int
	}{
		// Others' views.
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "west/api/v1/secrets", nil, 403},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "south/api/v1/secrets", nil, 403},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "nowhere/api", nil, 403},
		{syncerOf("east"), "POST", v1alpha1.ViewsPath + "west/credential", nil, 403},
		{syncerOf("south"), "GET", v1alpha1.ViewsPath + "south/api", nil, 403},
		{other, "GET", eastView + "/api/v1/secrets", nil, 403},
		{bare, "GET", eastView + "/api/v1/secrets", nil, 403},
		{anybody, "GET", v1alpha1.ViewsPath + "nowhere/api", nil, 404},
		// Others' objects.
		{syncerOf("east"), "GET", eastView + "/api/v1/namespaces/shop/secrets/theirs", nil, 404},
		{syncerOf("east"), "GET", eastView + "/api/v1/namespaces/shop/secrets/free", nil, 404},
		{syncerOf("east"), "GET", bound + "secret-theirs", nil, 404},
		{syncerOf("east"), "GET", own + "/clusters/west", nil, 404},
		{syncerOf("east"), "GET", own + "/boundnamespaces/kube-system", nil, 403},
		{syncerOf("east"), "GET", eastView + "/apis/" + apiVersion + "/resourcebindings", nil, 404},
		{syncerOf("east"), "GET", eastView + "/api/v1/nodes", nil, 404},
		// Paths that a proxy could interpret differently.
		{syncerOf("east"), "GET", eastView + "/../west/api/v1/secrets", nil, 400},
		{syncerOf("east"), "GET", eastView + "/./api", nil, 400},
		{syncerOf("east"), "GET", eastView + "//api/v1/secrets", nil, 400},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "/east/api", nil, 400},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "east%2f..%2fwest/api", nil, 400},
		{syncerOf("east"), "GET", v1alpha1.ViewsPath + "%77est/api", nil, 400},
		{syncerOf("east"), "GET", eastView + "/%2e%2e/west/api", nil, 400},
		{syncerOf("east"), "GET", eastView + "/..;/west/api", nil, 400},
		{syncerOf("east"), "GET", eastView + "/api/v1/namespaces/shop/secrets/mine/log", nil, 405},
		// Writes.
		{syncerOf("east"), "PUT", eastView + "/api/v1/namespaces/shop/secrets/mine", secret("mine"), 405},
		{syncerOf("east"), "PATCH", eastView + "/api/v1/namespaces/shop/secrets/mine", map[string]any{}, 405},
		{syncerOf("east"), "DELETE", eastView + "/api/v1/namespaces/shop/secrets/mine", nil, 405},
		{syncerOf("east"), "DELETE", eastView + "/api/v1/secrets", nil, 405},
		{syncerOf("east"), "POST", eastView + "/api/v1/namespaces/shop/secrets", secret("new"), 405},
		{syncerOf("east"), "PUT", eastView + "/api/v1/namespaces/shop/secrets/mine/status", secret("mine"), 405},
		{syncerOf("east"), "PUT", bound + "secret-mine", report("uid-binding-mine", state("east")), 405},
		{syncerOf("east"), "PATCH", bound + "secret-mine/status", report("uid-binding-mine", state("east")), 405},
		{syncerOf("east"), "DELETE", bound + "secret-mine", nil, 405},
		{syncerOf("east"), "PUT", own + "/clusters/east", pullCluster("east"), 405},
		{syncerOf("east"), "PUT", own + "/clusters/west/status", fleet.Observation{Ready: true, Reason: "ClusterReady"}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/west/halted", metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Reason: "R"}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/east/halted", metav1.Condition{Type: v1alpha1.ClusterReady, Reason: "R"}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/east/halted", metav1.Condition{Type: "DisksHealthy", Reason: "R"}, 403},
		{syncerOf("east"), "PUT", own + "/clustertaintpolicies/east", map[string]any{}, 404},
		{syncerOf("east"), "GET", own + "/clustertaintpolicies", nil, 404},
		{syncerOf("east"), "PUT", own + "/clusters/east/status", fleet.Observation{Reason: "not a word"}, 400},
		{syncerOf("east"), "PUT", own + "/clusters/east/status", fleet.Observation{Reason: "ClusterReady", NamespacesMessage: strings.Repeat("x", maxMessageBytes+1)}, 400},
		{syncerOf("east"), "PUT", own + "/clusters/east/status", fleet.Observation{Reason: "ClusterReady", NamespacesRemoved: types.UID(strings.Repeat("x", 129))}, 400},
		{syncerOf("east"), "PUT", own + "/clusters/west/types", fleet.TypesReport{}, 403},
		{syncerOf("east"), "PUT", own + "/clusters/west/apigroup", fleet.GroupReport{Group: "example.com"}, 403},
		{syncerOf("east"), "POST", own + "/clusters/east/types", fleet.TypesReport{}, 405},
		{syncerOf("east"), "GET", own + "/clusters/east/types", nil, 405},
		{syncerOf("east"), "PUT", own + "/clusters/east/types", "no report", 400},
		{syncerOf("east"), "PUT", own + "/clusters/east/apigroup", "no report", 400},
		{syncerOf("east"), "PUT", own + "/resourceinterpretations/east", map[string]any{}, 405},
		{anybody, "PUT", own + "/clusters/east/types", fleet.TypesReport{}, 403},
		{anybody, "PUT", own + "/clusters/east/apigroup", fleet.GroupReport{Group: "example.com"}, 403},
		// Reports for other clusters, and ambiguous ones.
		{syncerOf("east"), "PUT", bound + "secret-mine/status", report("uid-binding-mine", state("west")), 403},
		{syncerOf("east"), "PUT", bound + "secret-theirs/status", report("uid-binding-theirs", state("east")), 404},
		{syncerOf("east"), "PUT", bound + "secret-mine/status", report("another", state("east")), 409},
		{syncerOf("east"), "PUT", bound + "secret-mine/status", report("uid-binding-mine", nil), 400},
		{syncerOf("east"), "PUT", bound + "secret-mine/status", "no report", 400},
		{anybody, "PUT", bound + "secret-mine/status", report("uid-binding-mine", state("east")), 403},
		{syncerOf("east"), "POST", bound + "secret-mine/events", EventReport{Type: "Loud", Reason: "R", Message: "m"}, 400},
		{syncerOf("east"), "POST", bound + "secret-theirs/events", EventReport{Type: "Normal", Reason: "R", Message: "m"}, 404},
		{syncerOf("east"), "GET", eastView + "/credential", nil, 405},
		{syncerOf("east"), "POST", eastView + "/credential", CredentialRequest{Request: "none"}, 400},
	} {
		if code, text := s.ask(c.who, c.method, c.path, c.body); code != c.code || code >= 400 && strings.Contains(text, "c2VjcmV0") {
			t.Errorf("%s %s %s: %d, want %d: %s", c.who.Name, c.method, c.path, code, c.code, text)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.applied {
		t.Errorf("unexpected write: %s %v", a.Resource, a.Object)
	}
	if len(s.reports) > 0 {
		t.Errorf("unexpected report: %s", s.reports)
	}
}

// TestReportWritesOnlyOwnEntry: a report becomes the cluster's own entry and changes nothing
// else.
func TestReportWritesOnlyOwnEntry(t *testing.T) {
	s := newFixture(t, secret("both"), bind("both", "east", "west"))
	path := eastView + "/apis/" + apiVersion + "/namespaces/shop/boundobjects/secret-both/status"
	text := map[string]any{"metadata": map[string]any{"uid": "uid-binding-both", "labels": map[string]any{"a": "b"}, "finalizers": []string{}},
		"spec": map[string]any{"resource": map[string]any{"kind": "Other"}, "share": map[string]any{"name": "west"}},
		"status": map[string]any{"conditions": []any{"x"}, "state": map[string]any{"name": "east", "uid": "u", "health": "Degraded",
			"lastUpdateTime": "1999-01-01T00:00:00Z", "unhealthySince": "1999-01-01T00:00:00Z", "status": map[string]any{"a": 1}}}}
	if code, answer := s.ask(syncerOf("east"), "PUT", path, text); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	text["status"] = map[string]any{"removed": true}
	if code, answer := s.ask(syncerOf("east"), "PUT", path, text); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.applied) != 2 {
		t.Fatalf("%d writes", len(s.applied))
	}
	a := s.applied[0]
	metadata, _, _ := unstructured.NestedMap(a.Object, "metadata")
	if a.Subresource != "status" || a.Manager != "atoll-syncer-east" || a.Object["spec"] != nil || len(metadata) != 3 {
		t.Errorf("written: %s %v as %s", a.Subresource, a.Object, a.Manager)
	}
	var got v1alpha1.ResourceBinding
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.Object, &got); err != nil {
		t.Fatal(err)
	}
	if c := got.Status.Clusters; len(c) != 1 || c[0].Name != "east" || c[0].Health != "Degraded" || time.Since(c[0].LastUpdateTime.Time) > time.Hour ||
		c[0].UnhealthySince == nil || time.Since(c[0].UnhealthySince.Time) > time.Hour {
		t.Errorf("written: %v", a.Object)
	}
	if status, ok := s.applied[1].Object["status"].(map[string]any); !ok || status["clusters"] != nil {
		t.Errorf("the entry is not removed: %v", s.applied[1].Object)
	}
}

// TestHeartbeatIsLease: a heartbeat is stored in a Lease, which one controller watches.
func TestHeartbeatIsLease(t *testing.T) {
	s := newFixture(t)
	path := eastView + "/apis/" + apiVersion + "/clusters/east/status"
	if code, answer := s.ask(syncerOf("east"), "PUT", path, fleet.Observation{Ready: true, Reason: "ClusterReady", Version: "v1.36.3"}); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	lease := &coordinationv1.Lease{}
	s.control.Read(coordinationv1.SchemeGroupVersion.WithResource("leases"), v1alpha1.SystemNamespace, v1alpha1.HeartbeatLease("east"), lease)
	seen, err := fleet.ObservationOf(lease)
	if err != nil || !seen.Ready || seen.Version != "v1.36.3" || lease.Labels[v1alpha1.HeartbeatLabel] != "east" || lease.OwnerReferences[0].UID != "uid-east" {
		t.Errorf("%v %+v", err, lease)
	}
}

// TestCredentials: requesting a credential revokes previous ones; renewing does not.
func TestCredentials(t *testing.T) {
	s := newFixture(t)
	_, request, err := NewKey("east")
	if err != nil {
		t.Fatal(err)
	}
	admin := Caller{Name: "admin"}
	get := func(who Caller, cluster string, renew bool) (int, string) {
		return s.ask(who, "POST", v1alpha1.ViewsPath+cluster+"/credential", CredentialRequest{Request: string(request), Renew: renew})
	}
	counts := func() string {
		return s.control.Get(v1alpha1.ClusterResource, "", "east").GetAnnotations()[v1alpha1.CredentialAnnotation]
	}
	for _, renew := range []bool{true, false} { // a syncer only ever renews
		if code, text := get(syncerOf("east"), "east", renew); code != http.StatusOK || !strings.Contains(text, "certificate of east by good") || counts() != "good" {
			t.Errorf("the syncer renews: %d %s", code, text)
		}
	}
	if code, text := get(admin, "east", true); code != http.StatusOK || counts() != "good" {
		t.Errorf("an administrator renews: %d %s", code, text)
	}
	if code, text := get(admin, "east", false); code != http.StatusOK || counts() == "good" || !strings.Contains(text, "certificate of east by "+counts()) {
		t.Errorf("an administrator requests: %d %s", code, text)
	}
	if code, text := get(syncerOf("east"), "east", true); code != http.StatusForbidden {
		t.Errorf("renewal with a revoked credential: %d %s", code, text)
	}
	if code, text := get(admin, "south", false); code != http.StatusConflict {
		t.Errorf("a cluster in mode Push: %d %s", code, text)
	}
	if code, text := get(admin, "nowhere", false); code != http.StatusNotFound {
		t.Errorf("no cluster: %d %s", code, text)
	}
}

// TestRequestedRemovalsInView: a requested removal is visible to its cluster, so that the
// syncer does not count it.
func TestRequestedRemovalsInView(t *testing.T) {
	moved := func(name string, requested ...any) *unstructured.Unstructured {
		b := bind(name, "east")
		spec := b.Object["spec"].(map[string]any)
		spec["clusters"] = []any{map[string]any{"name": "west", "reason": "Chosen"}}
		spec["requestedRemovals"] = requested
		return b
	}
	entry := func(cluster string) any { return map[string]any{"name": cluster, "reason": "UsersDeleted"} }
	s := newFixture(t, secret("asked"), moved("asked", entry("east"), entry("north")), secret("moved"), moved("moved", entry("north")))
	for name, requested := range map[string]bool{"asked": true, "moved": false} {
		code, text := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/namespaces/shop/boundobjects/secret-"+name, nil)
		var got BoundObject
		if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		if !got.Leaves || got.Decided == requested {
			t.Errorf("%s leaves: %v, because of a decision: %v", name, got.Leaves, got.Decided)
		}
		if _, annotation := got.binding().RequestedRemoval("east"); annotation != requested {
			t.Errorf("%s: the syncer sees a request: %v", name, annotation)
		}
		if strings.Contains(text, "north") {
			t.Errorf("%s: another cluster is named: %s", name, text)
		}
	}
}

// TestRemovalIsConfirmed: whether an object is to leave comes from a live read, and is true
// only if unambiguous.
func TestRemovalIsConfirmed(t *testing.T) {
	leaves := func(s *fixture, name string) bool {
		t.Helper()
		code, text := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/namespaces/shop/boundobjects/secret-"+name, nil)
		var got BoundObject
		if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		return got.Leaves
	}
	elsewhere := bind("moved", "east")
	elsewhere.Object["spec"].(map[string]any)["clusters"] = []any{map[string]any{"name": "west", "reason": "Chosen"}}
	deleted := bind("deleted", "east")
	now := metav1.Now()
	deleted.SetDeletionTimestamp(&now)
	deleted.SetFinalizers([]string{"x"})
	alone := bind("alone", "east")
	alone.SetDeletionTimestamp(&now)
	alone.SetFinalizers([]string{"x"})
	s := newFixture(t, secret("stays"), bind("stays", "east"), secret("moved"), elsewhere, deleted, secret("alone"), alone)
	for name, want := range map[string]bool{"stays": false, "moved": true, "deleted": true, "alone": false} {
		if got := leaves(s, name); got != want {
			t.Errorf("%s leaves: %v", name, got)
		}
	}
}

// TestNewCredentialIsNotRefused: a credential that the caches do not have yet is accepted once they do.
func TestNewCredentialIsNotRefused(t *testing.T) {
	s := newFixture(t)
	path := eastView + "/apis/" + apiVersion + "/" + clusters + "/east"
	if code, text := s.ask(syncerOf("east"), "GET", path, nil); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	s.host.mu.Lock()
	cached := s.host.caches.session.Clusters.Informer.GetStore()
	s.host.mu.Unlock()
	now, ok, err := cached.GetByKey("east")
	if !ok || err != nil {
		t.Fatalf("Cluster east is not cached: %v", err)
	}
	before := now.(runtime.Object).DeepCopyObject()
	before.(metav1.Object).SetAnnotations(map[string]string{v1alpha1.CredentialAnnotation: "former"})
	if err := cached.Update(before); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = cached.Update(now) })
	if code, text := s.ask(syncerOf("east"), "GET", path, nil); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
}
