package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/atoll-dev/atoll/apiserver"
)

// Prefix is the path below which workspaces are served: /clusters/PATH/api/v1/... A workspace's path is its names from the root
// down, separated by colons: team-a:staging.
const Prefix = "/clusters/"

// maxPath bounds the length of a workspace's path: it has room for eight names of 63 characters.
const maxPath = 512

// splitPath splits the path of a request into that of the workspace and the rest, which begins with a slash. It accepts exactly one
// spelling of each path: what proxies and servers could understand in different ways names no workspace.
func splitPath(path, rawPath string) (workspace, rest string, ok bool) {
	workspace, rest, _ = strings.Cut(strings.TrimPrefix(path, Prefix), "/")
	rest = "/" + rest
	if !strings.HasPrefix(path, Prefix) {
		return "", "", false
	}
	if rawPath != "" && !strings.HasPrefix(rawPath+"/", Prefix+workspace+"/") {
		return "", "", false
	}
	return workspace, rest, IsPath(workspace)
}

// IsPath reports whether a path is one that a workspace can have.
func IsPath(path string) bool {
	if len(path) > maxPath {
		return false
	}
	for name := range strings.SplitSeq(path, ":") {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return false
		}
	}
	return true
}

// ErrNotFound is returned by Config.Open if there is no workspace with that path, or not any more.
var ErrNotFound = errors.New("workspace not found")

// ServeHTTP serves the requests below Prefix.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if of, ok := splitTreePath(r.URL.Path, r.URL.EscapedPath()); ok {
		s.serveTree(w, r, of)
		return
	}
	path, rest, ok := splitPath(r.URL.Path, r.URL.RawPath)
	if !ok {
		notFound(w, r, r.URL.Path)
		return
	}
	escaped := strings.TrimPrefix(r.URL.EscapedPath(), Prefix+path)
	var of viewPath
	if isView(rest) {
		if of, ok = splitViewPath(rest, escaped); !ok {
			notFound(w, r, r.URL.Path)
			return
		}
	}
	if claimsToBeServer(r) {
		answer(w, r, forbiddenServer())
		return
	}
	ctx, workspace, release, err := s.config.Open(r.Context(), path)
	if err != nil {
		s.notOpened(w, r, path, err)
		return
	}
	defer release()
	chain, err := s.built()
	if err != nil {
		s.notOpened(w, r, path, err)
		return
	}
	ctx = apiserver.MarkImpersonation(withWorkspace(ctx, workspace, path), r)
	if of.export != "" {
		in := r.Clone(context.WithValue(ctx, viewKey{}, &view{workspace, of}))
		in.URL.Path, in.URL.RawPath = of.path, of.rawPath
		in.RequestURI = in.URL.RequestURI()
		chain.handler.ServeHTTP(w, in)
		return
	}
	in := r.Clone(ctx)
	in.URL.Path, in.URL.RawPath = rest, strings.TrimPrefix(r.URL.RawPath, Prefix+path)
	if r.URL.RawPath != "" && in.URL.RawPath == "" {
		in.URL.RawPath = "/"
	}
	in.RequestURI = in.URL.RequestURI()
	chain.handler.ServeHTTP(w, in)
}

// serveTree serves a request to all workspaces below another one.
func (s *Server) serveTree(w http.ResponseWriter, r *http.Request, of treePath) {
	if claimsToBeServer(r) {
		answer(w, r, forbiddenServer())
		return
	}
	ctx, t, release, err := s.openTree(r.Context(), of)
	if err != nil {
		s.notOpened(w, r, of.top, err)
		return
	}
	defer release()
	chain, err := s.built()
	if err != nil {
		s.notOpened(w, r, t.String(), err)
		return
	}
	ctx = apiserver.MarkImpersonation(withWorkspace(ctx, t.top, t.String()), r)
	in := r.Clone(context.WithValue(ctx, treeKey{}, t))
	in.URL.Path, in.URL.RawPath = of.path, of.rawPath
	in.RequestURI = in.URL.RequestURI()
	chain.handler.ServeHTTP(w, in)
}

// forbiddenServer is the answer to a client that impersonates the server.
func forbiddenServer() *apierrors.StatusError {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "users"}, ServerUser, errors.New("no client may impersonate the server"))
}

// notOpened answers a request to a workspace that is not open. The log has the cause: it may be about the database, which is no
// concern of a user.
func (s *Server) notOpened(w http.ResponseWriter, r *http.Request, path string, err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		notFound(w, r, path)
	case errors.Is(err, ErrIncomplete):
		answer(w, r, apierrors.NewServiceUnavailable(fmt.Sprintf("workspace %q is being copied or moved from another one: wait until it is Ready", path)))
	case r.Context().Err() != nil:
		answer(w, r, apierrors.NewTimeoutError("the request ended while the workspace was being opened", 1))
	default:
		s.config.Log.Error("open a workspace failed", "workspace", path, "error", err)
		answer(w, r, apierrors.NewServiceUnavailable(fmt.Sprintf("workspace %q cannot be opened now: retry", path)))
	}
}

func notFound(w http.ResponseWriter, r *http.Request, name string) {
	answer(w, r, apierrors.NewNotFound(schema.GroupResource{Group: "tenancy.atoll.dev", Resource: "workspaces"}, name))
}

func answer(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, metav1.Unversioned, w, r)
}
