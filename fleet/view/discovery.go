package view

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// viewResource is a resource of a view.
type viewResource struct {
	resource   schema.GroupVersionResource
	kind       string
	namespaced bool
}

// resources returns all resources of a view: those of the kinds that can be bound, and its own.
func (p *projection) resources() []viewResource {
	out := []viewResource{
		{boundObjectResource(), boundObjectKind, true},
		{boundNamespaceResource(), boundNamespace, false},
		{v1alpha1.ClusterResource, clusterKind, false},
		{v1alpha1.ResourceInterpretationResource, interpretationKind, false},
	}
	for _, k := range p.view.session.Kinds.All() {
		out = append(out, viewResource{k.GVR(), k.Kind, !k.ClusterScoped})
	}
	return out
}

// discovery responds to discovery requests, and reports whether this was one. So kubectl works
// with a view as with a cluster.
func (r *request) discovery(w http.ResponseWriter) bool {
	if r.Method != http.MethodGet {
		return false
	}
	switch path := strings.Join(r.path, "/"); {
	case path == "healthz" || path == "livez" || path == "readyz":
		writeJSON(w, http.StatusOK, "ok")
	case path == "api":
		writeJSON(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{}})
	case path == "apis":
		writeJSON(w, http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: r.groups()})
	case len(r.path) == 2 && r.path[0] == "api":
		r.resources(w, schema.GroupVersion{Version: r.path[1]})
	case len(r.path) == 3 && r.path[0] == "apis":
		r.resources(w, schema.GroupVersion{Group: r.path[1], Version: r.path[2]})
	default:
		return false
	}
	return true
}

func (r *request) groups() []metav1.APIGroup {
	var out []metav1.APIGroup
	for _, k := range r.view.resources() {
		if k.resource.Group == "" {
			continue
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: groupVersion(k.resource), Version: k.resource.Version}
		i := slices.IndexFunc(out, func(g metav1.APIGroup) bool { return g.Name == k.resource.Group })
		if i < 0 {
			out = append(out, metav1.APIGroup{Name: k.resource.Group, PreferredVersion: version, Versions: []metav1.GroupVersionForDiscovery{version}})
		} else if !slices.Contains(out[i].Versions, version) {
			out[i].Versions = append(out[i].Versions, version)
		}
	}
	return out
}

func (r *request) resources(w http.ResponseWriter, gv schema.GroupVersion) {
	out := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	for _, k := range r.view.resources() {
		if k.resource.GroupVersion() != gv {
			continue
		}
		out.APIResources = append(out.APIResources, metav1.APIResource{Name: k.resource.Resource, SingularName: strings.ToLower(k.kind),
			Kind: k.kind, Namespaced: k.namespaced, Verbs: metav1.Verbs{"get", "list", "watch"}})
		if k.resource == boundObjectResource() || k.resource == v1alpha1.ClusterResource {
			out.APIResources = append(out.APIResources, metav1.APIResource{Name: k.resource.Resource + "/status",
				Kind: k.kind, Namespaced: k.namespaced, Verbs: metav1.Verbs{"update"}})
		}
	}
	if len(out.APIResources) == 0 {
		writeError(w, newStatusError(metav1.StatusReasonNotFound, "a view has no resources of %s", gv))
		return
	}
	writeJSON(w, http.StatusOK, out)
}
