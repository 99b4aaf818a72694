package workspaces

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	pods         = "/api/v1/namespaces/default/pods"
	pdbs         = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
	statefulSets = "/apis/apps/v1/namespaces/default/statefulsets"
	podSpec      = `"spec":{"containers":[{"name":"c","image":"nginx"}]}`
)

// merge changes an object by a merge patch.
func (s *stage) merge(url, patch string) response {
	s.t.Helper()
	r := httptest.NewRequest("PATCH", url, strings.NewReader(patch))
	r.Header.Set("Content-Type", "application/merge-patch+json")
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r.WithContext(request.WithUser(s.t.Context(), admin)))
	return response{w.Code, w.Body.String()}
}

// pod creates a pod that runs. metadata is more of its metadata.
func (s *stage) pod(path, name, metadata string, ready bool) {
	s.t.Helper()
	s.create(path, pods, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":"web"}%s},%s}`, name, metadata, podSpec))
	s.want(200, s.merge("/clusters/"+path+pods+"/"+name+"/status", fmt.Sprintf(
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q}]}}`, map[bool]string{true: "True", false: "False"}[ready])))
}

// budget creates a PodDisruptionBudget for all pods of the application.
func (s *stage) budget(path, name, spec string) {
	s.t.Helper()
	s.create(path, pdbs, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"selector":{"matchLabels":{"app":"web"}},%s}}`, name, spec))
}

func (s *stage) evict(path, name, options string) response {
	s.t.Helper()
	return s.as(admin, "POST", "/clusters/"+path+pods+"/"+name+"/eviction", fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q}%s}`, name, options))
}

// TestEvictions: an eviction deletes the pod of its workspace, and no other one. A budget of the workspace that needs the pod prevents it.
func TestEvictions(t *testing.T) {
	s := newStage(t, "a", "b")
	for _, path := range []string{"a", "b"} {
		for _, name := range []string{"web-0", "web-1", "web-2"} {
			s.pod(path, name, "", true)
		}
	}
	s.budget("b", "strict", `"minAvailable":3`) // bounds nothing in a
	s.want(404, s.evict("a", "missing", ""))
	s.want(403, s.as(alice, "POST", "/clusters/a"+pods+"/web-0/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"web-0"}}`))
	s.want(201, s.evict("a", "web-0", `,"deleteOptions":{"dryRun":["All"]}`))
	s.want(200, s.as(admin, "GET", "/clusters/a"+pods+"/web-0", ""))
	s.want(201, s.evict("a", "web-0", ""))
	s.want(404, s.as(admin, "GET", "/clusters/a"+pods+"/web-0", ""))
	if got := s.want(429, s.evict("b", "web-0", "")); !strings.Contains(got.body, "strict needs 3 healthy pods and has 3 currently") {
		t.Error(got.body)
	}
	s.want(200, s.as(admin, "GET", "/clusters/b"+pods+"/web-0", ""))

	s.budget("a", "web", `"minAvailable":1`)
	s.want(201, s.evict("a", "web-1", ""))
	if got := s.want(429, s.evict("a", "web-2", "")); !strings.Contains(got.body, "web needs 1 healthy pods and has 1 currently") {
		t.Error(got.body)
	}
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+pdbs+"/web", ""))
	s.want(201, s.evict("a", "web-2", ""))

	// A budget whose status a client keeps is believed, and one that the client has not observed yet allows nothing.
	s.merge("/clusters/b"+pdbs+"/strict/status", `{"status":{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":4,"desiredHealthy":3,"expectedPods":4}}`)
	s.want(201, s.evict("b", "web-0", ""))
	if got := s.want(200, s.as(admin, "GET", "/clusters/b"+pdbs+"/strict", "")); got.field(t, "status", "disruptionsAllowed") != float64(0) {
		t.Error(got.body)
	}
	s.want(429, s.evict("b", "web-1", ""))
	s.want(200, s.merge("/clusters/b"+pdbs+"/strict", `{"spec":{"minAvailable":0}}`))
	s.want(429, s.evict("b", "web-1", ""))
}

// TestEvictionsAtOnce: evictions at the same time do not use the same disruption.
func TestEvictionsAtOnce(t *testing.T) {
	s := newStage(t, "a")
	const n = 5
	for i := range n {
		// A finalizer keeps the pods, as a kubelet does for a while.
		s.pod("a", fmt.Sprint("web-", i), `,"finalizers":["example.com/held"]`, true)
	}
	s.budget("a", "web", `"minAvailable":3`)
	codes := make([]int, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { codes[i] = s.evict("a", fmt.Sprint("web-", i), "").code })
	}
	running.Wait()
	count := map[int]int{}
	for _, code := range codes {
		count[code]++
	}
	if count[201] != 2 || count[429] != 3 {
		t.Errorf("answers %v", codes)
	}
}

// TestEvictionsOfControlled: a budget with a percentage, or with a maximum, counts with the replicas of the objects that control the pods. If they are not known, it
// allows nothing.
func TestEvictionsOfControlled(t *testing.T) {
	s := newStage(t, "a")
	uid := s.create("a", statefulSets, `{"metadata":{"name":"web"},"spec":{"serviceName":"web","replicas":4,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},`+podSpec+`}}}`)
	owned := func(kind, apiVersion, name, uid string) string {
		return fmt.Sprintf(`,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true}]`, apiVersion, kind, name, uid)
	}
	for _, name := range []string{"web-0", "web-1", "web-2"} {
		s.pod("a", name, owned("StatefulSet", "apps/v1", "web", uid), true)
	}
	s.budget("a", "web", `"maxUnavailable":"25%"`) // three of four are healthy, and three must be
	if got := s.want(429, s.evict("a", "web-0", "")); !strings.Contains(got.body, "web needs 3 healthy pods and has 3 currently") {
		t.Error(got.body)
	}
	s.want(200, s.merge("/clusters/a"+statefulSets+"/web", `{"spec":{"replicas":3}}`))
	s.want(201, s.evict("a", "web-0", ""))
	s.want(429, s.evict("a", "web-1", ""))

	s.pod("a", "job", owned("Job", "batch/v1", "job", "uid"), true)
	if got := s.want(429, s.evict("a", "job", "")); !strings.Contains(got.body, "the kind Job has no subresource scale: use minAvailable with a number") {
		t.Error(got.body)
	}
}
