package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/util/responsewriter"
)

// adds reports whether a path is the discovery path of a version that has subresources
// of ours.
func (s subresources) extends(path string) bool {
	return slices.ContainsFunc(s.all, func(sub Subresource) bool { return path == versionPath(sub) })
}

func versionPath(sub Subresource) string { return "/apis/" + sub.Resource.GroupVersion().String() }

// serveDiscovery answers /apis/GROUP/VERSION with the response of the server of custom
// resources, plus the subresources of the resources that it lists.
func (s subresources) serveDiscovery(w http.ResponseWriter, r *http.Request, path string) {
	theirs := r.Clone(r.Context())
	theirs.Header.Set("Accept", "application/json")
	theirs.Header.Del("Accept-Encoding")
	answer := responsewriter.NewInMemoryResponseWriter()
	s.next.ServeHTTP(answer, theirs)
	var list metav1.APIResourceList
	if err := json.Unmarshal(answer.Data(), &list); err != nil || answer.RespCode() != http.StatusOK {
		// Answer in the requested encoding.
		s.next.ServeHTTP(w, r)
		return
	}
	resources := slices.Clone(list.APIResources)
	var version schema.GroupVersion
	for _, sub := range s.all {
		if path != versionPath(sub) {
			continue
		}
		version = sub.Resource.GroupVersion()
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == sub.Resource.Resource }) {
			resources = append(resources, metav1.APIResource{Name: sub.path(), Namespaced: !sub.ClusterScoped, Kind: sub.Kind, Verbs: sub.verbs()})
		}
	}
	discovery.NewAPIVersionHandler(apiextensionsapiserver.Codecs, version,
		discovery.APIResourceListerFunc(func() []metav1.APIResource { return resources })).ServeHTTP(w, r)
}

// withSubresources is the document of all groups, in which custom resources also have
// our subresources.
type withSubresources struct {
	aggregated.ResourceManager
	all []Subresource
}

func (d withSubresources) WithSource(source aggregated.Source) aggregated.ResourceManager {
	of := d.ResourceManager.WithSource(source)
	if source == aggregated.CRDSource {
		return extendedDiscovery{of, d.all}
	}
	return of
}

type extendedDiscovery struct {
	aggregated.ResourceManager
	all []Subresource
}

func (d extendedDiscovery) AddGroupVersion(group string, version apidiscoveryv2.APIVersionDiscovery) {
	version.Resources = slices.Clone(version.Resources)
	for i := range version.Resources {
		resource := &version.Resources[i]
		for _, sub := range d.all {
			if sub.Resource != (schema.GroupVersionResource{Group: group, Version: version.Version, Resource: resource.Resource}) {
				continue
			}
			resource.Subresources = append(slices.Clone(resource.Subresources), apidiscoveryv2.APISubresourceDiscovery{
				Subresource:  sub.Name,
				ResponseKind: &metav1.GroupVersionKind{Group: group, Version: version.Version, Kind: sub.Kind},
				Verbs:        sub.verbs(),
			})
		}
	}
	d.ResourceManager.AddGroupVersion(group, version)
}
