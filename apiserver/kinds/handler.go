package kinds

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// ServeHTTP implements http.Handler, at the end of the chain.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.serveOpenAPI(w, r) {
		return
	}
	info, ok := request.RequestInfoFrom(r.Context())
	switch {
	case !ok:
		s.notFound.ServeHTTP(w, r)
	case info.IsResourceRequest:
		s.serveObjects(w, r, info)
	default:
		s.serveDiscovery(w, r, info.Path)
	}
}

// serveDiscovery answers /apis/GROUP and /apis/GROUP/VERSION.
func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request, path string) {
	table := s.table.Load()
	switch parts := strings.Split(strings.Trim(path, "/"), "/"); {
	case len(parts) == 2 && parts[0] == "apis":
		if group, ok := table.group(parts[1]); ok {
			discovery.NewAPIGroupHandler(apiextensionsapiserver.Codecs, group).ServeHTTP(w, r)
			return
		}
	case len(parts) == 3 && parts[0] == "apis":
		gv := schema.GroupVersion{Group: parts[1], Version: parts[2]}
		if version, ok := table.versions[gv]; ok {
			lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return version.resources(gv.Group) })
			discovery.NewAPIVersionHandler(apiextensionsapiserver.Codecs, gv, lister).ServeHTTP(w, r)
			return
		}
	}
	s.notFound.ServeHTTP(w, r)
}

// Groups returns the groups that are served now, for the list of all groups. They have no APIServices: each server would have
// to keep such objects in step with its own source, and a server that is behind would delete what another has just announced.
func (s *Server) Groups() []metav1.APIGroup {
	table := s.table.Load()
	all := make([]metav1.APIGroup, 0, len(table.groups))
	for _, g := range table.groups {
		group, _ := table.group(g.Name)
		all = append(all, group)
	}
	return all
}

// serveObjects answers requests for objects.
func (s *Server) serveObjects(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	names, revision, ok := s.table.Load().find(resource)
	// Verbs that also work across namespaces: list and watch, and nothing else.
	everywhere := info.Namespace == "" && (info.Verb == "list" || info.Verb == "watch")
	if !ok || names.ClusterScoped == (info.Namespace != "") && !everywhere {
		s.notFound.ServeHTTP(w, r)
		return
	}
	refuse := func(err error) {
		responsewriters.ErrorNegotiated(err, apiextensionsapiserver.Codecs, resource.GroupVersion(), w, r)
	}
	if info.Subresource != "" && (info.Subresource != "status" || !names.Status) {
		refuse(apierrors.NewNotFound(resource.GroupResource(), info.Name))
		return
	}
	kind, life, release, err := s.opened.acquire(resource, names, revision, s.clock, s.build)
	if err != nil {
		refuse(apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be served at the moment: %v", resource.GroupResource(), err)))
		return
	}
	defer release()
	handler := s.handler(kind, info)
	if handler == nil {
		refuse(apierrors.NewMethodNotSupported(resource.GroupResource(), info.Verb))
		return
	}
	if info.Verb == "watch" {
		// The request may outlive the definition with which the kind was opened.
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		r = r.WithContext(ctx)
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, info.Subresource,
		metrics.CleanScope(info), metrics.APIServerComponent, false, "", handler)(w, warnOnUnknownFields(r))
}

// warnOnUnknownFields changes fieldValidation=Ignore to Warn: a misspelt argument is
// never dropped silently.
func warnOnUnknownFields(r *http.Request) *http.Request {
	const parameter = "fieldValidation"
	query := r.URL.Query()
	if query.Get(parameter) != metav1.FieldValidationIgnore {
		return r
	}
	query.Set(parameter, metav1.FieldValidationWarn)
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	return r
}

// handler returns upstream's handler for a verb, or nil.
func (s *Server) handler(k *servedKind, info *request.RequestInfo) http.HandlerFunc {
	patches := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	if info.Subresource != "" {
		_, verbs := kindVerbs()
		if !slices.Contains(verbs, info.Verb) {
			return nil
		}
		switch info.Verb {
		case "get":
			return handlers.GetResource(k.status, k.statusScope)
		case "update":
			return handlers.UpdateResource(k.status, k.statusScope, s.admission)
		default:
			return handlers.PatchResource(k.status, k.statusScope, s.admission, patches)
		}
	}
	switch info.Verb {
	case "get":
		return handlers.GetResource(k.objects, k.scope)
	case "list":
		return handlers.ListResource(k.objects, k.objects, k.scope, false, s.minTimeout)
	case "watch":
		return handlers.ListResource(k.objects, k.objects, k.scope, true, s.minTimeout)
	case "create":
		return handlers.CreateResource(k.objects, k.scope, s.admission)
	case "update":
		return handlers.UpdateResource(k.objects, k.scope, s.admission)
	case "patch":
		return handlers.PatchResource(k.objects, k.scope, s.admission, patches)
	case "delete":
		return handlers.DeleteResource(k.objects, true, k.scope, s.admission)
	case "deletecollection":
		return handlers.DeleteCollection(k.objects, true, k.scope, s.admission)
	}
	return nil
}
