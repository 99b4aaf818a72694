package workspaces

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestViewPath(t *testing.T) {
	for rest, want := range map[string]viewPath{
		"/apiexports/widgets/clusters/a/apis/example.com/v1/widgets": {"widgets", "a", "/apis/example.com/v1/widgets", "/apis/example.com/v1/widgets"},
		"/apiexports/widgets/clusters/a:b/apis":                      {"widgets", "a:b", "/apis", "/apis"},
		"/apiexports/w.x/clusters/*/apis/":                           {"w.x", "*", "/apis/", "/apis/"},
	} {
		if got, ok := splitViewPath(rest, rest); !ok || got != want {
			t.Errorf("%s: %+v, %v", rest, got, ok)
		}
	}
	const rest = "/apiexports/w/clusters/*/apis/x"
	for escaped, want := range map[string]bool{rest: true, "/apiexports/w/clusters/%2A/apis/x": true, "/apiexports/w/clusters/%2a/apis/x": false,
		"/apiexports/%77/clusters/*/apis/x": false, "/apiexports/w/clusters%2F*/apis/x": false} {
		if got, ok := splitViewPath(rest, escaped); ok != want {
			t.Errorf("%s: %+v, %v", escaped, got, ok)
		}
	}
	for _, rest := range []string{"/apiexports", "/apiexports/", "/apiexports/w", "/apiexports/w/clusters/a", "/apiexports/w/clusters/a/api/v1", "/apiexports/w/clusters/a/apisx",
		"/apiexports/w/clusters//apis", "/apiexports/*/clusters/a/apis", "/apiexports/W/clusters/a/apis", "/apiexports/w/clusters/a:*/apis", "/apiexports/w/clusters/**/apis",
		"/apiexports/w/other/a/apis", "/apiexports//clusters/a/apis"} {
		if got, ok := splitViewPath(rest, rest); ok || !isView(rest) {
			t.Errorf("%s: %+v", rest, got)
		}
	}
}

// TestViewAuthorizer: the request of a view needs a verb of the export. What else is asked is not changed, such as the right to impersonate.
func TestViewAuthorizer(t *testing.T) {
	var asked string
	inner := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		asked = fmt.Sprintf("%s %s.%s %s", a.GetVerb(), a.GetResource(), a.GetAPIGroup(), a.GetName())
		return authorizer.DecisionNoOpinion, "", nil
	})
	ofView := context.WithValue(t.Context(), viewKey{}, &view{viewPath: viewPath{export: "databases"}})
	for _, c := range []struct {
		ctx  context.Context
		verb string
		want string
	}{
		{ofView, "get", "view apiexports.tenancy.atoll.dev databases"},
		{ofView, "watch", "view apiexports.tenancy.atoll.dev databases"},
		{ofView, "patch", "manage apiexports.tenancy.atoll.dev databases"},
		{ofView, "deletecollection", "manage apiexports.tenancy.atoll.dev databases"},
		{ofView, "impersonate", "impersonate widgets.example.com w"},
		{ofView, "impersonate-on:user-info:get", "impersonate-on:user-info:get widgets.example.com w"},
		{t.Context(), "get", "get widgets.example.com w"},
	} {
		of := authorizer.AttributesRecord{User: &user.DefaultInfo{}, Verb: c.verb, APIGroup: "example.com", Resource: "widgets", Name: "w", ResourceRequest: true}
		if _, _, err := (viewAuthorizer{inner}).Authorize(c.ctx, of); err != nil || asked != c.want {
			t.Errorf("%s: asked %q, want %q (%v)", c.verb, asked, c.want, err)
		}
	}
}
