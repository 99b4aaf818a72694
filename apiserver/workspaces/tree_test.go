package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/merged"
)

func TestTreePath(t *testing.T) {
	const rest = "/api/v1/configmaps"
	for path, want := range map[string]treePath{
		"/clusters/*" + rest:           {"", rest, rest},
		"/clusters/team-a:*" + rest:    {"team-a", rest, rest},
		"/clusters/team-a:x:*" + rest:  {"team-a:x", rest, rest},
		"/clusters/*":                  {"", "/", "/"},
		"/clusters/*/":                 {"", "/", "/"},
		"/clusters/team-a:*/apis/x/y/": {"team-a", "/apis/x/y/", "/apis/x/y/"},
	} {
		for _, escaped := range []string{path, strings.Replace(path, "*", "%2A", 1)} {
			if got, ok := splitTreePath(path, escaped); !ok || got != want {
				t.Errorf("%s: %+v, %v", escaped, got, ok)
			}
		}
		for _, escaped := range []string{strings.Replace(path, "*", "%2a", 1), strings.Replace(path, "*", "%252A", 1), "/%63lusters" + path[len("/clusters"):]} {
			if got, ok := splitTreePath(path, escaped); ok {
				t.Errorf("%s: %+v", escaped, got)
			}
		}
	}
	for _, path := range []string{"/clusters/a", "/clusters/a*", "/clusters/*a", "/clusters/**", "/clusters/*:*", "/clusters/:*", "/clusters/a::*", "/clusters/a:*:b", "/clusters/A:*", "/clusters/a:**",
		"/clusters//*", "/clusters/*//api", "/clusters/*/api//v1", "/cluster/*", "*", "/clusters/"} {
		if got, ok := splitTreePath(path, path); ok {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// TestTreeAuthorizer: a tree asks the root for two rights, whatever name and namespace the request has. What else is asked is not
// changed, such as the right to impersonate. An error is no permission.
func TestTreeAuthorizer(t *testing.T) {
	var asked []string
	allowed, fails := map[string]bool{}, error(nil)
	by := func(who string) authorizer.AuthorizerFunc {
		return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			right := fmt.Sprintf("%s: %s %s.%s %q %q", who, a.GetVerb(), a.GetResource(), a.GetAPIGroup(), a.GetNamespace(), a.GetName())
			asked = append(asked, right)
			if allowed[right] && fails == nil {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", fails
		}
	}
	of := treeAuthorizer{by("workspace"), &Root{Authorizer: by("root")}}
	const view = `view workspaces.tenancy.atoll.dev "" ""`
	for _, c := range []struct {
		tree *tree
		verb string
		want []string
	}{
		{&tree{}, "list", []string{"root: " + view, `root: list configmaps. "" ""`}},
		{&tree{path: "a"}, "watch", []string{`root: view workspaces.tenancy.atoll.dev "" "a"`, `root: watch configmaps. "" ""`}},
		{&tree{path: "a:b"}, "get", []string{`root: view workspaces.tenancy.atoll.dev "" "a"`}},
		{&tree{}, "deletecollection", []string{"root: " + view}},
		{&tree{}, "impersonate", []string{`root: impersonate configmaps. "default" "one"`}},
		{&tree{path: "a"}, "impersonate-on:user-info:list", []string{`root: impersonate-on:user-info:list configmaps. "default" "one"`}},
		{nil, "list", []string{`workspace: list configmaps. "default" "one"`}},
	} {
		ctx := t.Context()
		if c.tree != nil {
			ctx = context.WithValue(ctx, treeKey{}, c.tree)
		}
		request := authorizer.AttributesRecord{User: &user.DefaultInfo{}, Verb: c.verb, Resource: "configmaps", Namespace: "default", Name: "one", ResourceRequest: true}
		clear(allowed)
		for i, right := range c.want {
			asked = nil
			if decision, reason, err := of.Authorize(ctx, request); decision != authorizer.DecisionNoOpinion || err != nil || len(asked) != i+1 || asked[i] != right ||
				c.tree != nil && !strings.HasPrefix(c.verb, "impersonate") && !strings.Contains(reason, "the verb") {
				t.Errorf("%+v %s: asked %q, want %q; %v, %s, %v", c.tree, c.verb, asked, right, decision, reason, err)
			}
			allowed[right] = true
		}
		if decision, _, err := of.Authorize(ctx, request); decision != authorizer.DecisionAllow || err != nil {
			t.Errorf("%+v %s with all rights: %v, %v", c.tree, c.verb, decision, err)
		}
		fails = errors.New("the database is away")
		if decision, _, err := of.Authorize(ctx, request); decision == authorizer.DecisionAllow || err == nil {
			t.Errorf("%+v %s with an error: %v, %v", c.tree, c.verb, decision, err)
		}
		fails = nil
	}
}

// nest records Workspaces in a workspace as the API stores them.
func (s *stage) nest(parent string, names ...string) {
	s.t.Helper()
	var ops []clientv3.Op
	for i, name := range names {
		ops = append(ops, clientv3.OpPut(customKey(tenancyv1alpha1.WorkspaceResource.GroupResource())+name,
			fmt.Sprintf(`{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"Workspace","metadata":{"name":%q,"uid":"uid-%s:%s"}}`, name, parent, name)))
		if len(ops) == 100 || i == len(names)-1 {
			if _, err := s.awake[parent].client.KV.Txn(s.t.Context()).Then(ops...).Commit(); err != nil {
				s.t.Fatal(err)
			}
			ops = nil
		}
	}
}

const configMapsOfTree = "/clusters/top:*/api/v1/namespaces/default/configmaps"

// TestTreeUncertain: a workspace that cannot be opened fails a list. An answer without it would look as if its objects were deleted. One
// that is gone for good, or is a copy that is not complete, is left out.
func TestTreeUncertain(t *testing.T) {
	s := newStage(t, "top", "top:a", "top:b", "top:a:c")
	s.nest("top", "a", "b")
	s.nest("top:a", "c")
	c, err := s.server.built()
	if err != nil {
		t.Fatal(err)
	}
	has := func(want ...string) {
		t.Helper()
		body := s.want(200, s.as(admin, "GET", configMapsOfTree, "")).body
		if strings.Count(body, `"name":"kube-root-ca.crt"`) != len(want) {
			t.Errorf("want %v: %s", want, body)
		}
		for _, path := range want {
			if !strings.Contains(body, fmt.Sprintf(`%q:%q`, WorkspaceAnnotation, path)) {
				t.Errorf("want %s: %s", path, body)
			}
		}
	}
	has("top:a", "top:a:c", "top:b")
	open, fails := c.open, error(nil)
	c.open = func(ctx context.Context, path string) (context.Context, *Workspace, func(), error) {
		if path == "top:a:c" && fails != nil {
			return nil, nil, nil, fails
		}
		return open(ctx, path)
	}
	unavailable := func() {
		t.Helper()
		if body := s.want(503, s.as(admin, "GET", configMapsOfTree, "")).body; strings.Contains(body, "database") || !strings.Contains(body, "a workspace of the tree cannot be read now: retry") {
			t.Error(body)
		}
	}
	fails = errors.New("the database is away")
	unavailable()
	fails = ErrNotFound // which may be because this server does not know it yet
	unavailable()
	fails = ErrIncomplete
	has("top:a", "top:b")
	fails = ErrNotFound
	c.confirm = func(context.Context, string, string) error { return ErrNotFound }
	has("top:a", "top:b")
}

// TestTreeTooLarge: a tree of more workspaces than one list or watch has is refused, with the remedy.
func TestTreeTooLarge(t *testing.T) {
	s := newStage(t, "top", "top:a")
	s.nest("top", "a")
	var names []string
	for i := range merged.MaxWorkspaces {
		names = append(names, fmt.Sprintf("w%d", i))
	}
	s.nest("top:a", names...) // one more than permitted, with their parent
	for _, query := range []string{"", "?watch=1"} {
		if body := s.want(400, s.as(admin, "GET", configMapsOfTree+query, "")).body; !strings.Contains(body, "below workspace top are more than 2000 workspaces: list or watch a smaller tree") {
			t.Error(body)
		}
	}
}

// TestTableWriter: each table has the workspace in front, whatever parts it is written in, and cells stay as they were encoded.
func TestTableWriter(t *testing.T) {
	const table = `{"kind":"Table","columnDefinitions":[{"name":"Name"}],"rows":[{"cells":["one",12345678901234567890,1.50],"object":{"metadata":{"annotations":{"tenancy.atoll.dev/workspace":"a:b"}}}}]}`
	const event = `{"type":"ADDED","object":{"kind":"Table","columnDefinitions":null,"rows":[{"cells":["one"],"object":{"metadata":{"annotations":{"tenancy.atoll.dev/workspace":"a"}}}}]}}`
	for _, c := range []struct{ in, want string }{
		{table + "\n", `["a:b","one",12345678901234567890,1.50]`},
		{table, `["a:b","one",12345678901234567890,1.50]`}, // without a newline at the end
		{table + "\n", `"columnDefinitions":[{"name":"Workspace","type":"string"`},
		{event + "\n" + event + "\n", `["a","one"]`},
		{`{"kind":"Status","code":404}` + "\n", `{"kind":"Status","code":404}`},
		{`{"type":"ERROR","object":{"kind":"Status","code":410}}` + "\n", `"code":410`},
		{"not JSON\n", "not JSON\n"},
	} {
		for _, size := range []int{1, 7, 10000} {
			answer := httptest.NewRecorder()
			w := &tableWriter{ResponseWriter: answer}
			for data := c.in; data != ""; {
				part := data[:min(size, len(data))]
				if _, err := w.Write([]byte(part)); err != nil {
					t.Fatal(err)
				}
				data = data[len(part):]
			}
			w.finish()
			if got := answer.Body.String(); !strings.Contains(got, c.want) || strings.Count(got, `"type":"ADDED"`) != strings.Count(c.in, `"type":"ADDED"`) {
				t.Errorf("%s in parts of %d: %s", c.in, size, got)
			}
		}
	}
}
