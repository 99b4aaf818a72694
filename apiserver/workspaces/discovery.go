package workspaces

import (
	"encoding/json"
	"fmt"
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

// withCustomDiscovery adds the custom resources of a workspace, and those that it is bound to, to its discovery and OpenAPI. Those of a
// workspace without any are the built-in ones, which are the same for all.
func (c *chain) withCustomDiscovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var serve func(*sources) (http.Handler, error)
		wanted := func(*Binding) bool { return true }
		switch path := r.URL.Path; {
		case path == "/apis", path == "/apis/":
			wanted = func(b *Binding) bool { return !c.announced.Has(b.Group) }
			serve = c.groupsHandler
		case path == openAPIV2:
			serve = c.documentV2
		case path == "/openapi/v3", path == "/openapi/v3/":
			serve = func(s *sources) (http.Handler, error) { return s.documents(next), nil }
		case strings.HasPrefix(path, openAPIGroups):
			group, _, _ := strings.Cut(strings.TrimPrefix(path, openAPIGroups), "/")
			wanted = func(b *Binding) bool { return b.Group == group }
			serve = func(s *sources) (http.Handler, error) { return s.document(next, group), nil }
		default:
			next.ServeHTTP(w, r)
			return
		}
		all, err := c.sourcesOf(r.Context(), workspaceOf(r.Context()), wanted)
		if err == nil {
			defer all.release()
			handler := next
			if all.own != nil || len(all.bound) > 0 || all.kinds != nil {
				handler, err = serve(all)
			}
			if err == nil {
				handler.ServeHTTP(w, r)
				return
			}
		}
		c.log.Error("read the discovery of a workspace failed", "workspace", PathOf(r.Context()), "error", err)
		answer(w, r, unavailable("discovery cannot be read now: retry"))
	})
}

// groupsHandler serves the groups of a workspace that has more than the built-in ones.
func (c *chain) groupsHandler(s *sources) (http.Handler, error) {
	groups := c.generic.AggregatedDiscoveryGroupManager
	if s.own != nil {
		groups = s.own.groups
	}
	if len(s.bound) > 0 || s.kinds != nil {
		var err error
		if groups, err = s.withOtherGroups(groups); err != nil {
			return nil, err
		}
	}
	return aggregated.WrapAggregatedDiscoveryToHandler(groupList(groups), groups, nil), nil
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
	return managerOf(list.Items), nil
}

// managerOf returns a document of the groups, in this order.
func managerOf(groups []apidiscoveryv2.APIGroupDiscovery) aggregated.ResourceManager {
	out := aggregated.NewResourceManager("apis")
	out.SetGroups(groups)
	for i, group := range groups {
		for j, version := range group.Versions {
			// Before custom resources, which have 1000.
			out.SetGroupVersionPriority(metav1.GroupVersion{Group: group.Name, Version: version.Version}, 20000-i, 100-j)
		}
	}
	return out
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

// openAPIGroups is the path of the OpenAPI documents of groups.
const openAPIGroups = "/openapi/v3/apis/"

func unavailable(message string) *apierrors.StatusError {
	return apierrors.NewServiceUnavailable(message)
}
