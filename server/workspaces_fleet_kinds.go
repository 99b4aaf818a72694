package server

import (
	"context"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infrav1alpha1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// fleetGroups are the groups of the fleet and of infrastructure. A workspace has each from the server, unless it has one from elsewhere.
var fleetGroups = [...]string{v1alpha1.Group, mcsv1beta1.GroupName, infrav1alpha1.Group}

// systemDefinitions returns the definitions that all workspaces have.
func systemDefinitions() ([][]byte, error) {
	ofTenancy, err := tenancyv1alpha1.WorkspaceCRDs()
	if err != nil {
		return nil, err
	}
	ofFleet, err := v1alpha1.WorkspaceCRDs()
	if err != nil {
		return nil, err
	}
	ofServices, err := multicluster.CRDs()
	if err != nil {
		return nil, err
	}
	ofInfra, err := infrav1alpha1.CRDs()
	return slices.Concat(ofTenancy, ofFleet, ofServices, ofInfra), err
}

// fleetBindings returns the bindings of a workspace to the fleetGroups, except for those that it has from elsewhere: from
// CustomResourceDefinitions of its own, or from an APIBinding of an earlier version of Atoll. Their objects have the same keys, and must not get another schema.
func (t *tenants) fleetBindings(ctx context.Context, consumer *workspaces.Workspace, stored []*tenancyv1alpha1.APIBinding) (all []workspaces.Binding, err error) {
	elsewhere, err := t.served.DefinedGroups(ctx, consumer)
	if err != nil {
		return nil, err
	}
	for _, b := range stored {
		for _, group := range groupsOf(b.Spec.Resources) {
			elsewhere[group] = true
		}
	}
	for _, group := range fleetGroups {
		if !elsewhere[group] {
			all = append(all, workspaces.Binding{Group: group, Open: t.systemExporter})
		}
	}
	return all, nil
}

// hasFleet returns which of the fleetGroups a workspace has from the server.
func (t *tenants) hasFleet(ctx context.Context, w *workspaces.Workspace) (map[string]bool, error) {
	stored, err := t.storedBindings(ctx, w)
	if err != nil {
		return nil, err
	}
	bindings, err := t.fleetBindings(ctx, w, stored)
	has := map[string]bool{}
	for _, b := range bindings {
		has[b.Group] = true
	}
	return has, err
}

// workspaceFleetRoles are the fleetRoles that workspaces have: without clusters in mode Pull, metrics, and the kinds that only the root has.
func workspaceFleetRoles() (out []rbacv1.ClusterRole) {
	rootOnly := func(resource string) bool {
		return slices.ContainsFunc(v1alpha1.RootResources, func(r schema.GroupVersionResource) bool { return r.Resource == resource })
	}
	for _, role := range fleetRoles() {
		var rules []rbacv1.PolicyRule
		for _, rule := range role.Rules {
			switch group := rule.APIGroups[0]; {
			case group == v1alpha1.Group:
				rule.Resources = slices.DeleteFunc(slices.Clone(rule.Resources), rootOnly)
				rules = append(rules, rule)
			case group == mcsv1beta1.GroupName:
				rules = append(rules, rule)
			case group == metricsv1beta1.GroupName:
			default: // of the roles for mode Pull
				rules = nil
			}
		}
		if len(rules) > 0 {
			role.Rules = rules
			out = append(out, role)
		}
	}
	return out
}
