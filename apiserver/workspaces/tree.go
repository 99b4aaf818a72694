package workspaces

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// Root is what the server of workspaces knows of the root, which is served by another chain. It decides who reads trees.
type Root struct {
	// Authenticator and Authorizer are those of the root.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Workspaces returns the Workspaces of the root that are not being deleted. They are not older than the call.
	Workspaces func(context.Context) ([]Child, error)
	// Follow returns a channel that receives when Workspaces may return something else. It is closed when ctx ends.
	Follow func(context.Context) <-chan struct{}
}

// Child is a Workspace.
type Child struct {
	Name, UID string
	// Revision is another one after each change.
	Revision int64
}

// wholeTree ends the path of a tree: all workspaces below the one before it.
const wholeTree = "*"

// tree is a request to all workspaces below another one, its top, which is not among them. The request counts as one to the top. But its user is
// one of the root, and the root decides about it: the RBAC of the top has no power over the workspaces below it.
type tree struct {
	// top is a workspace without a keyspace if it stands for the root: nothing can be read from it.
	top *Workspace
	// path is that of the top, "" for the root.
	path string
}

func (t *tree) isOfRoot() bool { return t.path == "" }

// String returns the path of the tree: *, or PATH:*.
func (t *tree) String() string {
	if t.isOfRoot() {
		return wholeTree
	}
	return t.path + ":" + wholeTree
}

// at names the top in messages.
func (t *tree) at() string {
	if t.isOfRoot() {
		return "the root"
	}
	return "workspace " + t.path
}

type treeKey struct{}

// treeOf returns the tree of a request, nil for other requests.
func treeOf(ctx context.Context) *tree {
	t, _ := ctx.Value(treeKey{}).(*tree)
	return t
}

// treePath is what the path of a request to a tree names: /clusters/*/..., or /clusters/TOP:*/...
type treePath struct {
	top string
	// path and rawPath are those of the request within the tree.
	path, rawPath string
}

// splitTreePath splits a path, and the same as it was escaped in the request. It accepts one spelling of each path, and two of the
// asterisk: clients in Go escape it.
func splitTreePath(path, escaped string) (t treePath, ok bool) {
	below, found := strings.CutPrefix(path, Prefix)
	if !found {
		return t, false
	}
	below, t.path, _ = strings.Cut(below, "/")
	if t.path = "/" + t.path; strings.Contains(t.path, "//") {
		return t, false
	}
	begin := ""
	if below != wholeTree {
		if t.top, found = strings.CutSuffix(below, ":"+wholeTree); !found || !IsPath(t.top) {
			return t, false
		}
		begin = t.top + ":"
	}
	for _, spelling := range []string{wholeTree, "%2A"} {
		if raw, is := strings.CutPrefix(escaped, Prefix+begin+spelling); is && (raw == "" || raw[0] == '/') {
			t.rawPath = cmp.Or(raw, "/")
			return t, true
		}
	}
	return t, false
}

// openTree opens the top of a tree.
func (s *Server) openTree(ctx context.Context, of treePath) (in context.Context, t *tree, release func(), err error) {
	if s.config.Root == nil {
		return nil, nil, nil, ErrNotFound
	}
	if of.top == "" {
		return ctx, &tree{top: s.root}, func() {}, nil
	}
	in, w, release, err := s.config.Open(ctx, of.top)
	return in, &tree{top: w, path: of.top}, release, err
}

// treeUsers authenticates the requests to trees as the root does, and all others by the authenticator of workspaces.
func treeUsers(root *Root, workspaces authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if treeOf(r.Context()) == nil {
			return workspaces.AuthenticateRequest(r)
		}
		response, ok, err := root.Authenticator.AuthenticateRequest(r)
		if ok && err == nil && response.User.GetName() == ServerUser {
			return nil, false, nil // no client is the server
		}
		return response, ok, err
	})
}

// treeAuthorizer asks the root, for a request to a tree, for the verb view on the first Workspace of its path, or on all of them, and for the
// request's verb on all objects of its resource. What filters ask in addition, such as the right to impersonate, is a question to the root too.
type treeAuthorizer struct {
	authorizer.Authorizer
	root *Root
}

// Authorize implements authorizer.Authorizer.
func (a treeAuthorizer) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	t := treeOf(ctx)
	if t == nil {
		return a.Authorizer.Authorize(ctx, of)
	}
	by := a.root.Authorizer
	if !of.IsResourceRequest() || viewVerbs[of.GetVerb()] == "" {
		return by.Authorize(ctx, of)
	}
	view := treeRight(of.GetUser(), tenancyv1alpha1.ViewVerb, tenancyv1alpha1.WorkspaceResource)
	view.Name, _, _ = strings.Cut(t.path, ":")
	needed := []authorizer.AttributesRecord{view}
	if verb := of.GetVerb(); verb == "list" || verb == "watch" { // others are answered with 405
		needed = append(needed, treeRight(of.GetUser(), verb, schema.GroupVersionResource{Group: of.GetAPIGroup(), Version: of.GetAPIVersion(), Resource: of.GetResource()}))
	}
	for _, right := range needed {
		if decision, _, err := by.Authorize(ctx, right); decision != authorizer.DecisionAllow {
			resource := schema.GroupResource{Group: right.APIGroup, Resource: right.Resource}
			return decision, fmt.Sprintf("all workspaces below %s need, by the RBAC of the root, the verb %s on %s", t.at(), right.Verb, named(resource, right.Name)), err
		}
	}
	return authorizer.DecisionAllow, "", nil
}

// named names the objects of a right.
func named(resource schema.GroupResource, name string) string {
	if name == "" {
		return resource.String() + ", for all names and namespaces"
	}
	return resource.String() + "/" + name
}

// treeRight is a right on all objects of a resource.
func treeRight(who user.Info, verb string, resource schema.GroupVersionResource) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: who, Verb: verb, APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource, ResourceRequest: true}
}

// readOnly is the answer to requests that a tree does not serve.
func (t *tree) readOnly(verb string, resource schema.GroupResource) *apierrors.StatusError {
	status := apierrors.NewMethodNotSupported(resource, verb)
	status.ErrStatus.Message = fmt.Sprintf("/clusters/%s only lists and watches: %s %s in one workspace, /clusters/PATH", t, verb, resource)
	return status
}
