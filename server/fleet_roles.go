package server

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// fleetRoles divide the permissions on the fleet's kinds.
//
// Kubernetes' own roles get the namespaced ones: view reads them, and edit and admin write those with which a user decides
// about the objects of their own namespace. FleetQuotas limit these users, as ResourceQuotas do, and ResourceBindings are
// the scheduler's: both are only readable.
//
// Users with the bootstrap token of a cluster have the role bootstrapper: see bootstrapBinding. The others are bound to no one.
// An approver lets such clusters join. A viewer reads all, also without a namespace. An operator decides where the objects of
// all namespaces run, and drains clusters. Neither joins clusters: their kubeconfigs are Secrets. Neither has clusters/proxy,
// which gives the rights of Atoll's credential in the cluster, so the resources are listed: "*" would include it.
func fleetRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	write := []string{"create", "update", "patch", "delete", "deletecollection"}
	own := func(verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: resources, Verbs: verbs}
	}
	shared := func(verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{mcsv1beta1.GroupName}, Resources: resources, Verbs: verbs}
	}
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "atoll:fleet-" + name}, Rules: rules}
	}
	requests := func(verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: verbs}
	}
	part := func(of string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		r := role("aggregate-to-"+of, rules...)
		r.Labels = map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + of: "true"}
		return r
	}
	// As metrics-server's role system:aggregated-metrics-reader.
	metrics := rbacv1.PolicyRule{APIGroups: []string{metricsv1beta1.GroupName}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list"}}
	placements, schedules := v1alpha1.PlacementResource.Resource, v1alpha1.ScaleScheduleResource.Resource
	quotas, bindings := v1alpha1.FleetQuotaResource.Resource, v1alpha1.ResourceBindingResource.Resource
	policies := []string{v1alpha1.ClusterPlacementResource.Resource, v1alpha1.VolumePolicyResource.Resource, v1alpha1.ClusterTaintPolicyResource.Resource, placements, schedules, quotas}
	return []rbacv1.ClusterRole{
		part("view", metrics, own(read, placements, schedules, quotas, bindings), shared(read, mcsv1beta1.ServiceExportPluralName, mcsv1beta1.ServiceImportPluralName)),
		part("edit", own(write, placements, schedules), shared(write, mcsv1beta1.ServiceExportPluralName)),
		role("viewer", own(read, fleetResources()...)),
		role(bootstrapper, requests("create", "get")),
		role("approver", requests(read...),
			rbacv1.PolicyRule{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests/approval"}, Verbs: []string{"update"}},
			rbacv1.PolicyRule{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"}, ResourceNames: []string{v1alpha1.SyncerSignerName}, Verbs: []string{"approve"}}),
		role("operator", own(read, fleetResources()...), own(write, policies...), own([]string{"update", "patch"}, v1alpha1.ClusterResource.Resource)),
	}
}

// fleetResources are the resources of the fleet's kinds, with their status.
func fleetResources() []string {
	kinds := []schema.GroupVersionResource{
		v1alpha1.APIResourceImportResource, v1alpha1.ClusterPlacementResource, v1alpha1.ClusterResource, v1alpha1.ClusterResourceBindingResource,
		v1alpha1.ClusterTaintPolicyResource, v1alpha1.FleetQuotaResource, v1alpha1.NegotiatedAPIResourceResource, v1alpha1.PlacementResource,
		v1alpha1.ResourceBindingResource, v1alpha1.ResourceInterpretationResource, v1alpha1.ScaleScheduleResource, v1alpha1.SharedAPIResource,
		v1alpha1.TypePolicyResource, v1alpha1.VolumePolicyResource,
	}
	out := []string{"*/status"}
	for _, kind := range kinds {
		out = append(out, kind.Resource)
	}
	return out
}

// retiredFleetRules are rules that earlier versions gave to roles. They would include clusters/proxy.
func retiredFleetRules() map[string]rbacv1.PolicyRule {
	all := rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}}
	return map[string]rbacv1.PolicyRule{"atoll:fleet-viewer": all, "atoll:fleet-operator": all}
}

// bootstrapper is the role of syncers that join with a bootstrap token. They may read requests by name only, which lists
// would reveal.
const bootstrapper = "bootstrapper"

func bootstrapBinding() rbacv1.ClusterRoleBinding {
	name := "atoll:fleet-" + bootstrapper
	return rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: v1alpha1.BootstrapGroup}}}
}
