package workspaces

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestForeignPosition: a continue token, a resource version or a UID of one workspace reveals nothing of it in another one, and changes
// nothing there.
func TestForeignPosition(t *testing.T) {
	s := newStage(t, "a", "b")
	const maps = "/api/v1/namespaces/default/configmaps"
	create := func(path, name string) response {
		return s.want(201, s.as(admin, "POST", "/clusters/"+path+maps, `{"metadata":{"name":"`+name+`"},"data":{"of":"`+path+`"}}`))
	}
	create("b", "m-9")
	for i := range 5 {
		create("a", fmt.Sprintf("m-%d", i))
	}
	page := s.want(200, s.as(admin, "GET", "/clusters/a"+maps+"?limit=2", ""))
	position := page.field(t, "metadata", "continue").(string)
	version := page.field(t, "metadata", "resourceVersion").(string)

	// The token is valid as such: it has a key and a revision. The objects there are those of b, or it is refused.
	for _, query := range []string{"?limit=2&continue=" + url.QueryEscape(position), "?resourceVersion=" + version + "&resourceVersionMatch=Exact"} {
		if out := s.as(admin, "GET", "/clusters/b"+maps+query, ""); strings.Contains(out.body, `"of":"a"`) || out.code == http.StatusInternalServerError {
			t.Errorf("%s: %d %s", query, out.code, out.body)
		}
	}
	own := create("b", "own")
	foreign := create("a", "own")
	uid := foreign.field(t, "metadata", "uid").(string)
	s.want(409, s.as(admin, "DELETE", "/clusters/b"+maps+"/own", `{"preconditions":{"uid":"`+uid+`"}}`))
	stale := strings.Replace(own.body, `"of":"b"`, `"of":"nobody"`, 1)
	stale = strings.Replace(stale, own.field(t, "metadata", "resourceVersion").(string), "1", 1)
	s.want(409, s.as(admin, "PUT", "/clusters/b"+maps+"/own", stale))
	if out := s.want(200, s.as(admin, "GET", "/clusters/b"+maps+"/own", "")); !strings.Contains(out.body, `"of":"b"`) {
		t.Error(out.body)
	}
}

// TestForeignIdentity: impersonation is decided by the workspace of the request, and an access review says nothing about another one.
func TestForeignIdentity(t *testing.T) {
	s := newStage(t, "a", "b")
	const list = "/api/v1/namespaces/default/configmaps"
	rbac := "/apis/rbac.authorization.k8s.io/v1"
	s.want(201, s.as(admin, "POST", "/clusters/a"+rbac+"/clusterroles", `{"metadata":{"name":"impersonator"},"rules":[{"apiGroups":[""],"resources":["users","groups"],"verbs":["impersonate"]}]}`))
	s.want(201, s.as(admin, "POST", "/clusters/a"+rbac+"/clusterrolebindings",
		`{"metadata":{"name":"impersonator"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"impersonator"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"alice"}]}`))
	as := func(path, name, group string) response {
		r := httptest.NewRequest("GET", "/clusters/"+path+list, nil)
		r.Header.Set("Impersonate-User", name)
		if group != "" {
			r.Header.Set("Impersonate-Group", group)
		}
		return s.serve(r.WithContext(request.WithUser(s.t.Context(), alice)))
	}
	s.want(200, as("a", "owner-of-a", ""))
	s.want(403, as("b", "owner-of-b", "")) // alice may not impersonate there
	s.want(403, as("b", "admin", "system:masters"))
	s.want(200, as("a", "admin", "system:masters"))
	s.want(403, as("a", ServerUser, "system:masters")) // although alice may impersonate all users there
	s.want(403, as("a", "owner-of-b", ""))             // the owner of b is nothing in a

	review := `{"spec":{"user":"owner-of-b","resourceAttributes":{"namespace":"default","verb":"list","resource":"configmaps"}}}`
	for path, allowed := range map[string]bool{"a": false, "b": true} {
		if got := s.want(201, s.as(admin, "POST", "/clusters/"+path+"/apis/authorization.k8s.io/v1/subjectaccessreviews", review)).field(t, "status", "allowed"); got != allowed {
			t.Errorf("in %s the owner of b is allowed: %v", path, got)
		}
	}
}
