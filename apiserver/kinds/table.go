package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// kindTable is an immutable table of the kinds that are served.
type kindTable struct {
	groups []Group // sorted by name
	// versions by group and version; each has its kinds by plural name.
	versions map[schema.GroupVersion]servedVersion
	// refused maps each group that is not served to the reason.
	refused map[string]string
}

// servedVersion is a version of a group with its kinds.
type servedVersion struct {
	Version
	byPlural map[string]int
}

// discoveryPriority is the same as that of CRDs.
const discoveryPriority = 1000

// newTable decides which groups are served. A group is served completely or not at
// all: if part of it belonged to another server, the order of events would decide which
// part. foreign returns the other server of a group, or "".
func newTable(groups []Group, foreign func(group string) string) *kindTable {
	t := &kindTable{versions: map[schema.GroupVersion]servedVersion{}, refused: map[string]string{}}
	names := map[string]bool{}
	for _, group := range groups {
		versions, reason := checkGroup(group)
		if names[group.Name] {
			reason = "the group is defined twice: remove one definition"
		}
		names[group.Name] = true
		if by := foreign(group.Name); reason == "" && by != "" {
			reason = fmt.Sprintf("the group is already served by %s: delete that, or rename the group", by)
		}
		if reason != "" {
			t.refused[group.Name] = reason
			continue
		}
		t.groups = append(t.groups, group)
		for i, v := range group.Versions {
			t.versions[schema.GroupVersion{Group: group.Name, Version: v.Name}] = servedVersion{v, versions[i]}
		}
	}
	t.groups = slices.DeleteFunc(t.groups, func(g Group) bool {
		if t.refused[g.Name] == "" {
			return false
		}
		for _, v := range g.Versions { // the first of two
			delete(t.versions, schema.GroupVersion{Group: g.Name, Version: v.Name})
		}
		return true
	})
	slices.SortFunc(t.groups, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	return t
}

// checkGroup indexes the kinds of each version by plural name. If the group cannot be
// served, it returns the reason.
func checkGroup(group Group) (versions []map[string]int, reason string) {
	if errs := validation.IsDNS1123Subdomain(group.Name); len(errs) > 0 || !strings.Contains(group.Name, ".") {
		return nil, fmt.Sprintf("%q is not a valid group name: use a DNS name such as example.com", group.Name)
	}
	if len(group.Versions) == 0 {
		return nil, "the group has no versions: define one"
	}
	kinds, plurals, singulars := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, v := range group.Versions {
		if errs := validation.IsDNS1035Label(v.Name); len(errs) > 0 {
			return nil, fmt.Sprintf("%q is not a valid version name: use one such as v1", v.Name)
		}
		index := make(map[string]int, len(v.Kinds))
		for i, k := range v.Kinds {
			switch {
			case len(validation.IsDNS1035Label(k.Plural)) > 0 || len(validation.IsDNS1035Label(strings.ToLower(k.Kind))) > 0 || len(validation.IsDNS1035Label(k.Singular)) > 0:
				return nil, fmt.Sprintf("kind %q has the names %q and %q: each must be a DNS label", k.Kind, k.Plural, k.Singular)
			case kinds[k.Kind] || plurals[k.Plural] || singulars[k.Singular]:
				return nil, fmt.Sprintf("kind %q has the names %q and %q, and another kind of the group has one of them too: rename one kind", k.Kind, k.Plural, k.Singular)
			}
			kinds[k.Kind], plurals[k.Plural], singulars[k.Singular] = true, true, true
			index[k.Plural] = i
		}
		versions = append(versions, index)
	}
	for kind := range kinds {
		if base, ok := strings.CutSuffix(kind, "List"); ok && kinds[base] {
			return nil, fmt.Sprintf("kind %q has the same name as the list kind of %q: rename one", kind, base)
		}
	}
	return versions, ""
}

// find returns a kind by its plural name.
func (t *kindTable) find(r schema.GroupVersionResource) (names Names, revision string, ok bool) {
	v := t.versions[r.GroupVersion()]
	i, ok := v.byPlural[r.Resource]
	if !ok {
		return Names{}, "", false
	}
	return v.Kinds[i], v.Revision, true
}

// group returns a group for legacy discovery.
func (t *kindTable) group(name string) (metav1.APIGroup, bool) {
	i, ok := slices.BinarySearchFunc(t.groups, name, func(g Group, name string) int { return cmp.Compare(g.Name, name) })
	if !ok {
		return metav1.APIGroup{}, false
	}
	out := metav1.APIGroup{Name: name}
	for _, v := range t.groups[i].Versions {
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + v.Name, Version: v.Name})
	}
	out.PreferredVersion = out.Versions[0]
	return out, true
}

// kindVerbs returns the verbs of each kind and of its status. The caller must not
// change them.
func kindVerbs() (object, status metav1.Verbs) {
	return metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}, metav1.Verbs{"get", "patch", "update"}
}

// resources returns a version's resources for legacy discovery.
func (v servedVersion) resources(group string) []metav1.APIResource {
	verbs, statusVerbs := kindVerbs()
	out := make([]metav1.APIResource, 0, 2*len(v.Kinds))
	for _, k := range v.Kinds {
		out = append(out, metav1.APIResource{
			Name: k.Plural, SingularName: k.Singular, Namespaced: !k.ClusterScoped, Kind: k.Kind, Verbs: verbs,
			ShortNames: k.ShortNames, Categories: k.Categories,
			StorageVersionHash: discovery.StorageVersionHash(group, v.Name, k.Kind),
		})
		if k.Status {
			out = append(out, metav1.APIResource{Name: k.Plural + "/status", Namespaced: !k.ClusterScoped, Kind: k.Kind, Verbs: statusVerbs})
		}
	}
	return out
}

// aggregated returns a version for aggregated discovery.
func (v servedVersion) aggregated(group string) apidiscoveryv2.APIVersionDiscovery {
	verbs, statusVerbs := kindVerbs()
	out := apidiscoveryv2.APIVersionDiscovery{
		Version: v.Name, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: make([]apidiscoveryv2.APIResourceDiscovery, 0, len(v.Kinds)),
	}
	for _, k := range v.Kinds {
		kind := &metav1.GroupVersionKind{Group: group, Version: v.Name, Kind: k.Kind}
		r := apidiscoveryv2.APIResourceDiscovery{
			Resource: k.Plural, SingularResource: k.Singular, Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: kind, Verbs: verbs,
			ShortNames: k.ShortNames, Categories: k.Categories,
		}
		if k.ClusterScoped {
			r.Scope = apidiscoveryv2.ScopeCluster
		}
		if k.Status {
			r.Subresources = []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: kind, Verbs: statusVerbs}}
		}
		out.Resources = append(out.Resources, r)
	}
	slices.SortFunc(out.Resources, func(a, b apidiscoveryv2.APIResourceDiscovery) int { return cmp.Compare(a.Resource, b.Resource) })
	return out
}
