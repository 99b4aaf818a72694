package workspaces

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// acceptAggregated asks for the document of all groups.
const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// withCustomDiscovery adds the custom resources of a workspace to its discovery and OpenAPI. Those of a workspace without any are the
// built-in ones, which are the same for all.
func (c *chain) withCustomDiscovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		workspace := workspaceOf(r.Context())
		var of func(*customServer) http.Handler
		switch r.URL.Path {
		case "/apis", "/apis/":
			of = func(s *customServer) http.Handler {
				return aggregated.WrapAggregatedDiscoveryToHandler(groupList(s.groups), s.groups, nil)
			}
		case "/openapi/v3", "/openapi/v3/":
			of = func(s *customServer) http.Handler { return mergedDocuments(next, s.openAPI) }
		default:
			of = func(s *customServer) http.Handler { return customDocument(next, s.openAPI) }
			if !isOpenAPIGroup(r.URL.Path) {
				next.ServeHTTP(w, r)
				return
			}
		}
		has, err := workspace.hasDefinitions(r.Context())
		if err == nil && has {
			var server *customServer
			if server, err = workspace.custom(c); err == nil {
				err = server.await(r.Context())
			}
			if err == nil {
				of(server).ServeHTTP(w, r)
				return
			}
		}
		if err != nil {
			answer(w, r, unavailable("discovery cannot be read now: retry"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// announceDefinitions adds CustomResourceDefinitions to discovery. Their own server, which would do so, runs only in workspaces that
// have some.
func (c *chain) announceDefinitions(server *genericapiserver.GenericAPIServer) {
	gv := apiextensionsv1.SchemeGroupVersion
	served := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	server.DiscoveryGroupManager.AddGroup(metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{served}, PreferredVersion: served})
	kind := &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: "CustomResourceDefinition"}
	c.generic.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: []apidiscoveryv2.APIResourceDiscovery{{Resource: "customresourcedefinitions", SingularResource: "customresourcedefinition", ResponseKind: kind,
			Scope: apidiscoveryv2.ScopeCluster, ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
			Verbs:        metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
			Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: kind, Verbs: metav1.Verbs{"get", "patch", "update"}}}}}})
}

// builtInGroups returns a document of all groups that has the built-in ones.
func (c *chain) builtInGroups() (aggregated.ResourceManager, error) {
	list, err := groupsOf(c.generic.AggregatedDiscoveryGroupManager)
	if err != nil {
		return nil, err
	}
	out := aggregated.NewResourceManager("apis")
	out.SetGroups(list.Items)
	for i, group := range list.Items {
		for j, version := range group.Versions {
			// Before custom resources, which have 1000, and in this order.
			out.SetGroupVersionPriority(metav1.GroupVersion{Group: group.Name, Version: version.Version}, 20000-i, 100-j)
		}
	}
	return out, nil
}

// groupsOf reads a document of all groups.
func groupsOf(manager http.Handler) (*apidiscoveryv2.APIGroupDiscoveryList, error) {
	r, err := http.NewRequest(http.MethodGet, "/apis", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", acceptAggregated)
	w := responsewriter.NewInMemoryResponseWriter()
	manager.ServeHTTP(w, r)
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	if err := json.Unmarshal(w.Data(), list); err != nil || w.RespCode() != http.StatusOK {
		return nil, fmt.Errorf("read discovery: status %d: %w", w.RespCode(), err)
	}
	return list, nil
}

// groupList serves the list of groups for clients that do not know the document of all groups.
func groupList(groups http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list, err := groupsOf(groups)
		if err != nil {
			answer(w, r, unavailable("discovery cannot be read now: retry"))
			return
		}
		out := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
		for _, group := range list.Items {
			one := metav1.APIGroup{Name: group.Name}
			for _, version := range group.Versions {
				one.Versions = append(one.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group.Name + "/" + version.Version, Version: version.Version})
			}
			if len(one.Versions) > 0 {
				one.PreferredVersion = one.Versions[0]
			}
			out.Groups = append(out.Groups, one)
		}
		responsewriters.WriteObjectNegotiated(legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, r, http.StatusOK, out, false)
	})
}

// mergedDocuments serves the list of OpenAPI documents, the built-in and the custom ones.
func mergedDocuments(builtIn, custom http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		type documents struct {
			Paths map[string]json.RawMessage `json:"paths"`
		}
		all := documents{Paths: map[string]json.RawMessage{}}
		for _, handler := range []http.Handler{builtIn, custom} {
			in := r.Clone(r.Context())
			in.Header.Del("Accept-Encoding")
			in.Header.Del("If-None-Match")
			part, found := responsewriter.NewInMemoryResponseWriter(), documents{}
			handler.ServeHTTP(part, in)
			if err := json.Unmarshal(part.Data(), &found); err != nil || part.RespCode() != http.StatusOK {
				answer(w, r, unavailable("the list of OpenAPI documents cannot be read now: retry"))
				return
			}
			maps.Copy(all.Paths, found.Paths)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(all)
	})
}

// customDocument serves the OpenAPI document of a group of custom resources, or else a built-in one.
func customDocument(builtIn, custom http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		group, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, openAPIGroups), "/")
		if strings.Contains(group, ".") && !legacyscheme.Scheme.IsGroupRegistered(group) {
			custom.ServeHTTP(w, r)
			return
		}
		builtIn.ServeHTTP(w, r)
	})
}

// openAPIGroups is the path of the OpenAPI documents of groups.
const openAPIGroups = "/openapi/v3/apis/"

// isOpenAPIGroup reports whether a path is that of the OpenAPI document of a group.
func isOpenAPIGroup(path string) bool { return strings.HasPrefix(path, openAPIGroups) }

func unavailable(message string) *apierrors.StatusError {
	return apierrors.NewServiceUnavailable(message)
}
