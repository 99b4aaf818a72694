package workspaces

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/atoll-dev/atoll/apiserver"
)

// withElsewhere gives a request for pods, events or the proxy of a Service access to those outside of the workspace. Requests to several workspaces, and those of the
// server itself, see the stored objects alone.
func (c *chain) withElsewhere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, known := request.RequestInfoFrom(ctx)
		workspace := workspaceOf(ctx)
		if !known || workspace == nil || !mayBeElsewhere(info) || isServers(ctx) || ctx.Value(treeKey{}) != nil || ctx.Value(viewKey{}) != nil {
			next.ServeHTTP(w, r)
			return
		}
		elsewhere, release, err := c.elsewhere(ctx, PathOf(ctx), workspace)
		if err != nil && ctx.Err() == nil {
			c.log.Error("find out who places the objects of a workspace failed", "workspace", PathOf(ctx), "error", err)
		}
		if err != nil {
			answer(w, r, apierrors.NewServiceUnavailable("it is not known now where the objects of this workspace run: retry"))
			return
		}
		defer release()
		if elsewhere != nil {
			r = r.WithContext(apiserver.WithElsewhere(ctx, elsewhere))
		}
		next.ServeHTTP(w, r)
	})
}

// mayBeElsewhere reports whether a request is for objects that may be elsewhere, or connects to them.
func mayBeElsewhere(info *request.RequestInfo) bool {
	if !info.IsResourceRequest || info.APIGroup != "" {
		return false
	}
	reads := info.Verb == "get" || info.Verb == "list" || info.Verb == "watch"
	switch info.Resource {
	case "events":
		return reads
	case "pods":
		return reads || info.Name != ""
	case "services":
		return info.Subresource == "proxy"
	}
	return false
}

// HandlerAs returns a handler of an open workspace for requests as a user that is no client; paths are those in the workspace. It does not keep the
// workspace open: the caller does.
func (s *Server) HandlerAs(w *Workspace, path, name string) (http.Handler, error) {
	chain, err := s.built()
	if err != nil {
		return nil, err
	}
	return apiserver.HandlerAs(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		chain.handler.ServeHTTP(out, r.WithContext(withWorkspace(r.Context(), w, path)))
	}), name), nil
}
