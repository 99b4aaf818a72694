package workspaces

import (
	"fmt"
	"strings"
	"testing"
)

// TestAbsences: resources that nothing would enforce are not in discovery, and their paths say what to do instead, to users with the right to them. A workspace
// that defines a kind of such a group has it.
func TestAbsences(t *testing.T) {
	s := newStage(t, "a", "b")
	core := s.want(200, s.as(admin, "GET", "/clusters/a/api/v1", "")).body
	if strings.Contains(core, `"name":"nodes"`) || !strings.Contains(core, `"name":"pods/eviction"`) {
		t.Error(core)
	}
	for _, c := range []struct{ method, path, message string }{
		{"GET", "/api/v1/nodes", "workspaces do not have nodes: nodes belong to clusters: use kubectl with a kubeconfig of the cluster"},
		{"GET", "/api/v1/nodes/one/proxy/metrics", "workspaces do not have nodes/proxy"},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "tokenreviews.authentication.k8s.io: workspaces verify no tokens for other programs: create a SelfSubjectReview"},
		{"PATCH", "/apis/certificates.k8s.io/v1/certificatesigningrequests/one", "request a certificate in the root"},
		{"GET", "/apis/certificates.k8s.io/v1", "workspaces do not have certificates.k8s.io"},
		{"DELETE", "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com", "bind the API of another workspace with an APIBinding"},
		{"GET", "/apis/resource.k8s.io/v1/deviceclasses", "workspaces do not have deviceclasses.resource.k8s.io"},
		{"GET", "/apis/gateway.networking.k8s.io/v1beta1/namespaces/default/referencegrants", "define it, with the CustomResourceDefinition"},
	} {
		got := s.want(404, s.as(admin, c.method, "/clusters/a"+c.path, "{}"))
		if !strings.Contains(got.body, c.message) || !strings.Contains(got.body, "NotInWorkspaces") {
			t.Errorf("%s %s: %s", c.method, c.path, got.body)
		}
		if c.path != "/apis/certificates.k8s.io/v1" { // discovery is for all
			s.want(403, s.as(alice, c.method, "/clusters/a"+c.path, "{}"))
		}
	}
	for _, path := range []string{"/apis/example.com/v1/widgets", "/apis/example.com", "/unknown"} {
		if got := s.want(404, s.as(admin, "GET", "/clusters/a"+path, "")); strings.Contains(got.body, "workspaces do not have") {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if got := s.want(404, s.as(admin, "GET", "/clusters/*/api/v1/nodes", "")); !strings.Contains(got.body, "workspaces do not have nodes") {
		t.Errorf("in a tree: %s", got.body)
	}
}

// TestAbsenceRows: the rows of the documentation name resources, subresources alone if the workspace has their parent, and groups.
func TestAbsenceRows(t *testing.T) {
	for _, c := range []struct {
		Absence
		want string
	}{
		{Absence{Resources: []string{"nodes", "nodes/proxy"}, Reason: "r", Instead: "i"}, "| `nodes` | r | i |"},
		{Absence{Resources: []string{"pods/log", "pods/exec"}, Reason: "r", Instead: "i"}, "| `pods/log`, `pods/exec` | r | i |"},
		{Absence{Group: "example.com", Reason: "r", Instead: "i"}, "| `example.com` | r | i |"},
		{Absence{Group: "example.com", Resources: []string{"widgets"}, Reason: "r", Instead: "i"}, "| `widgets` of `example.com` | r | i |"},
	} {
		if got := c.Row(); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	for i, a := range Absences() {
		for j, b := range Absences() {
			if i != j && a.Row() == b.Row() {
				t.Error(fmt.Sprint("twice: ", a.Row()))
			}
		}
	}
}
