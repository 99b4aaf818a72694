package mapping

import (
	"cmp"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// neverGroups are groups whose objects are never copied: they give permissions, or belong to the API that has them.
var neverGroups = []string{rbacv1.GroupName, "authentication.k8s.io", "authorization.k8s.io", "coordination.k8s.io", "events.k8s.io", "certificates.k8s.io", "apiextensions.k8s.io"}

// neverKinds are further kinds whose objects are never copied.
var neverKinds = []schema.GroupResource{
	{Resource: "events"}, {Resource: "bindings"}, {Resource: "pods"}, {Resource: "replicationcontrollers"}, {Resource: "podtemplates"},
	{Group: "apps", Resource: "controllerrevisions"}, {Group: "apps", Resource: "replicasets"},
	fleetv1alpha1.ResourceBindingResource.GroupResource(), fleetv1alpha1.FleetQuotaResource.GroupResource(),
}

// Follows reports whether a change of an object of a resource may change what the parent has to have.
func Follows(resource schema.GroupResource) bool {
	return !slices.Contains(neverGroups, resource.Group) && !slices.Contains(neverKinds, resource)
}

// Kinds returns the namespaced kinds of objects that the parent places: those that both APIs serve and that the rules permit to create, in an order
// in which objects come after those that they need.
func Kinds(rules []rbacv1.PolicyRule, child, parent []*metav1.APIResourceList) []interpret.KindInfo {
	inParent := resourcesOf(parent)
	var out []interpret.KindInfo
	for resource, gvk := range resourcesOf(child) {
		gr := resource.GroupResource()
		if _, served := inParent[resource]; !served || !Follows(gr) || !permitted(rules, gr) {
			continue
		}
		k, known := interpret.Find(gvk.GroupKind())
		if !known {
			k = interpret.Generic(gvk, resource.Resource, false, nil)
		}
		if k.Version == gvk.Version && !k.ClusterScoped {
			out = append(out, k)
		}
	}
	order := map[schema.GroupKind]int{}
	for i, k := range interpret.Kinds() {
		order[k.GroupKind()] = i + 1
	}
	slices.SortFunc(out, func(a, b interpret.KindInfo) int {
		first := func(k interpret.KindInfo) int { return cmp.Or(order[k.GroupKind()], len(order)+1) }
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.GroupKind().String(), b.GroupKind().String()))
	})
	return out
}

// resourcesOf returns the namespaced resources of an API that can be listed and created, with their kinds.
func resourcesOf(lists []*metav1.APIResourceList) map[schema.GroupVersionResource]schema.GroupVersionKind {
	out := map[schema.GroupVersionResource]schema.GroupVersionKind{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // no API server serves it
		}
		for _, r := range list.APIResources {
			if r.Namespaced && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "create") {
				out[gv.WithResource(r.Name)] = gv.WithKind(r.Kind)
			}
		}
	}
	return out
}

// permitted reports whether rules of RBAC permit to create objects of a resource, whatever their names are.
func permitted(rules []rbacv1.PolicyRule, resource schema.GroupResource) bool {
	has := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return len(r.ResourceNames) == 0 && has(r.Verbs, "create") && has(r.APIGroups, resource.Group) && has(r.Resources, resource.Resource)
	})
}

// isCopied reports whether the parent is to have a copy of an object.
func isCopied(k interpret.KindInfo, source *unstructured.Unstructured) bool {
	if interpret.IsSystemNamespace(source.GetNamespace()) {
		return false
	}
	if k.Group == fleetv1alpha1.Group {
		return true // policies stay in the control plane, which for these is the parent
	}
	return interpret.StaysHome(source) == ""
}
