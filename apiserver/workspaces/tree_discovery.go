package workspaces

import (
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/discovery"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// serveTreeDiscovery serves the discovery of the kinds that all workspaces have, with the verbs that a tree serves, and the version and the
// OpenAPI documents of the server. Nothing of a workspace is read.
func (c *chain) serveTreeDiscovery(w http.ResponseWriter, r *http.Request, builtIn http.Handler) error {
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch {
	case path == "/version", path == openAPIV2, path == "/openapi/v3", strings.HasPrefix(path, "/openapi/v3/"):
		builtIn.ServeHTTP(w, r)
		return nil
	case path == "/api" || strings.HasPrefix(path, "/api/"):
		return c.serveReadable(w, r, c.legacyGroups, strings.TrimPrefix(path, "/api"))
	case path == "/apis" || strings.HasPrefix(path, "/apis/"):
		return c.serveReadable(w, r, c.generic.AggregatedDiscoveryGroupManager, strings.TrimPrefix(path, "/apis"))
	}
	return ErrNotFound
}

// serveReadable serves one of the documents of discovery: that of all groups (below is empty), of a group, or of a version.
func (c *chain) serveReadable(w http.ResponseWriter, r *http.Request, from aggregated.ResourceManager, below string) error {
	all, err := groupsOf(from)
	if err != nil {
		return err
	}
	readable := apidiscoveryv2.APIGroupDiscoveryList{}
	for _, group := range all.Items {
		if group = readableOf(group); len(group.Versions) > 0 {
			readable.Items = append(readable.Items, group)
		}
	}
	groups, resources, _ := discovery.SplitGroupsAndResources(readable)
	below = strings.TrimPrefix(below, "/")
	if from == c.legacyGroups {
		if below == "" {
			versions := &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}}
			for _, group := range readable.Items {
				for _, version := range group.Versions {
					versions.Versions = append(versions.Versions, version.Version)
				}
			}
			return serveGroups(w, r, readable, versions)
		}
		below = "/" + below // the group has no name
	}
	if below == "" {
		groups.TypeMeta = metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}
		return serveGroups(w, r, readable, groups)
	}
	group, version, ofVersion := strings.Cut(below, "/")
	if list := resources[schema.GroupVersion{Group: group, Version: version}]; ofVersion && list != nil {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}
		writeDocument(w, r, list)
		return nil
	}
	if i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == group }); i >= 0 && !ofVersion {
		groups.Groups[i].TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		writeDocument(w, r, &groups.Groups[i])
		return nil
	}
	return ErrNotFound
}

// serveGroups serves the document of all groups, or another one to clients that do not know that.
func serveGroups(w http.ResponseWriter, r *http.Request, all apidiscoveryv2.APIGroupDiscoveryList, other runtime.Object) error {
	fallback := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { writeDocument(w, r, other) })
	aggregated.WrapAggregatedDiscoveryToHandler(fallback, managerOf(all.Items), nil).ServeHTTP(w, r)
	return nil
}

func writeDocument(w http.ResponseWriter, r *http.Request, document runtime.Object) {
	responsewriters.WriteObjectNegotiated(legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, r, http.StatusOK, document, false)
}

// readableOf returns a group with the resources that can be listed, and with the verbs of reading many objects.
func readableOf(group apidiscoveryv2.APIGroupDiscovery) apidiscoveryv2.APIGroupDiscovery {
	versions := group.Versions
	group.Versions = nil
	for _, version := range versions {
		resources := version.Resources
		version.Resources = nil
		for _, resource := range resources {
			resource.Verbs = slices.DeleteFunc(slices.Clone(resource.Verbs), func(verb string) bool { return verb != "list" && verb != "watch" })
			if resource.Subresources = nil; slices.Contains(resource.Verbs, "list") {
				version.Resources = append(version.Resources, resource)
			}
		}
		if len(version.Resources) > 0 {
			group.Versions = append(group.Versions, version)
		}
	}
	return group
}
