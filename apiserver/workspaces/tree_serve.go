package workspaces

import (
	"errors"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// withTrees serves the requests to trees, which are authorized. None of them has a workspace from here on. builtIn serves the kinds that all
// workspaces have.
func (c *chain) withTrees(builtIn, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := treeOf(r.Context())
		if t == nil {
			next.ServeHTTP(w, r)
			return
		}
		r = r.WithContext(withWorkspace(r.Context(), nil, ""))
		if err := c.serveTree(w, r, t, builtIn); err != nil {
			c.noTree(w, r, t, err)
		}
	})
}

func (c *chain) serveTree(w http.ResponseWriter, r *http.Request, t *tree, builtIn http.Handler) error {
	info, known := request.RequestInfoFrom(r.Context())
	switch {
	case !known:
		return ErrNotFound
	case !info.IsResourceRequest && r.Method != http.MethodGet:
		return t.readOnly(strings.ToLower(r.Method), schema.GroupResource{Resource: r.URL.Path})
	case !info.IsResourceRequest:
		return c.serveTreeDiscovery(w, r, builtIn)
	case info.Verb != "list" && info.Verb != "watch", info.Subresource != "":
		return t.readOnly(info.Verb, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
	}
	w, r, finish := withWorkspaceColumn(w, r)
	defer finish()
	resource := storedAs(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
	switch {
	case c.announced.Has(resource.Group), resource.Group == apiextensionsv1.GroupName:
		definitions, err := c.definitions(r.Context())
		if err != nil {
			return err
		}
		c.serveDefined(w, r.WithContext(c.over(r.Context(), treeScope{c, t, resource, nil}, resource)), definitions, true)
		return nil
	case IsBuiltIn(resource.Group):
		builtIn.ServeHTTP(w, r.WithContext(c.over(r.Context(), treeScope{c, t, resource, nil}, resource)))
		return nil
	}
	return c.serveCustomTree(w, r, t, info)
}

// storedAs returns the resource of the storage that has the objects of a resource. Events are in two groups and stored in one.
func storedAs(resource schema.GroupResource) schema.GroupResource {
	if resource == eventsv1.Resource("events") {
		return corev1.Resource("events")
	}
	return resource
}

// noTree answers a request to a tree that failed. The log has the cause of an error that is not about the request.
func (c *chain) noTree(w http.ResponseWriter, r *http.Request, t *tree, err error) {
	var status *apierrors.StatusError
	switch {
	case errors.As(err, &status):
		answer(w, r, status)
	case errors.Is(err, ErrNotFound):
		noSuchPath(w, r)
	case r.Context().Err() != nil:
		answer(w, r, apierrors.NewTimeoutError("the request ended while the workspaces were being read", 1))
	default:
		c.log.Error("serve a tree of workspaces failed", "tree", t.String(), "path", r.URL.Path, "error", err)
		answer(w, r, unavailable("a workspace of the tree cannot be read now: retry"))
	}
}
