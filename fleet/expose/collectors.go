package expose

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

const rbacGroup = "rbac.authorization.k8s.io"

var (
	roleResource    = schema.GroupVersionResource{Group: rbacGroup, Version: "v1", Resource: "clusterroles"}
	bindingResource = schema.GroupVersionResource{Group: rbacGroup, Version: "v1", Resource: "clusterrolebindings"}
)

// autoupdate is Kubernetes' annotation on its own roles: "false" preserves a user's changes.
const autoupdate = rbacGroup + "/autoupdate"

// reconcileCollectors lets the members' garbage collectors read the exposed groups in the control
// plane. A single kind that a collector cannot list blocks the collection of all others. Collectors
// get only metadata.
func (c *controller) reconcileCollectors(ctx context.Context) error {
	groups := map[string]bool{}
	for _, s := range c.shared.All() {
		// Include one that is being deleted: members may still serve it.
		for _, group := range s.Spec.Groups {
			groups[group] = true
		}
	}
	role, binding := collectorsRole(slices.Sorted(maps.Keys(groups)))
	for _, o := range []struct {
		desired  *unstructured.Unstructured
		resource schema.GroupVersionResource
		cache    controllers.Cache[unstructured.Unstructured]
	}{
		{role, roleResource, c.roles},
		{binding, bindingResource, c.bindings},
	} {
		live, exists := o.cache.Get(v1alpha1.CollectorsGroup)
		if exists && (live.GetAnnotations()[autoupdate] == "false" || sameRole(live, o.desired)) || !exists && len(groups) == 0 {
			continue
		}
		_, err := c.Dynamic.Resource(o.resource).Apply(ctx, v1alpha1.CollectorsGroup, o.desired, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if err != nil {
			return fmt.Errorf("grant garbage collectors of members access to exposed groups: apply %s %s: %w", o.desired.GetKind(), o.desired.GetName(), err)
		}
	}
	return nil
}

// sameRole compares rules, or subjects, exactly: additional rules would grant additional
// permissions.
func sameRole(live, desired *unstructured.Unstructured) bool {
	for field, want := range desired.Object {
		have := live.Object[field]
		if rules, ok := want.([]any); ok && len(rules) == 0 && have == nil {
			continue
		}
		if field == "metadata" && covers(have, want) || equality.Semantic.DeepEqual(have, want) {
			continue
		}
		return false
	}
	return true
}

// collectorsRole returns the role for the groups, and its binding.
func collectorsRole(groups []string) (role, binding *unstructured.Unstructured) {
	empty := func(kind string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": rbacGroup + "/v1", "kind": kind}}
		u.SetName(v1alpha1.CollectorsGroup)
		label(u, v1alpha1.ManagedByLabel, v1alpha1.ManagedByAtoll)
		u.SetAnnotations(map[string]string{autoupdate: "true"})
		return u
	}
	role, binding = empty("ClusterRole"), empty("ClusterRoleBinding")
	rules := []any{}
	if len(groups) > 0 {
		var all []any
		for _, g := range groups {
			all = append(all, g)
		}
		rules = append(rules, map[string]any{"apiGroups": all, "resources": []any{"*"}, "verbs": []any{"get", "list", "watch"}})
	}
	role.Object["rules"] = rules
	binding.Object["roleRef"] = map[string]any{"apiGroup": rbacGroup, "kind": "ClusterRole", "name": v1alpha1.CollectorsGroup}
	binding.Object["subjects"] = []any{map[string]any{"apiGroup": rbacGroup, "kind": "Group", "name": v1alpha1.CollectorsGroup}}
	return role, binding
}
