package server

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/grants"
	"github.com/atoll-dev/atoll/infra/providercontroller"
)

// infraRoles divide the permissions on infrastructure. They are bound to no one. They
// are additive: a user who writes and approves has two of them.
//
// ResourceStates and PlanSecrets are in none: they hold secrets. Kubernetes' own roles
// edit and admin have none of these permissions either.
func infraRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	write := []string{"create", "update", "patch", "delete", "deletecollection"}
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "atoll:infra-" + name}, Rules: rules}
	}
	own := func(verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: resources, Verbs: verbs}
	}
	// The viewer's and the editor's permissions are aggregated roles: of these, and of
	// two for each Provider, since a role cannot match all groups below a domain.
	sum := func(name, label string) rbacv1.ClusterRole {
		r := role(name)
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}}}
		return r
	}
	part := func(name, label string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		r := role(name, rules...)
		r.Labels = map[string]string{label: "true"}
		return r
	}
	plans := []string{v1alpha1.PlanResource.Resource, v1alpha1.ApplyResource.Resource}
	readable := append(plans, v1alpha1.PlanResource.Resource+"/changes")
	policies := []string{v1alpha1.SyncPolicyResource.Resource, v1alpha1.ClusterSyncPolicyResource.Resource}
	running := []string{v1alpha1.ProviderResource.Resource, v1alpha1.ProviderConfigResource.Resource}
	approvals := v1alpha1.ApprovalResource.Resource
	// Whoever writes references sees which grants there are.
	granted := func(verbs []string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{grants.Group}, Resources: []string{grants.Resource}, Verbs: verbs}
	}
	all := slices.Concat(readable, policies, running, []string{approvals, v1alpha1.ProviderResource.Resource + "/types"})
	return []rbacv1.ClusterRole{
		sum("viewer", providercontroller.AggregateToViewer),
		part("viewer:plans", providercontroller.AggregateToViewer, own(read, all...), granted(read)),
		sum("editor", providercontroller.AggregateToEditor),
		part("editor:plans", providercontroller.AggregateToEditor, own(read, all...), granted(read), own(write, plans...)),
		// Approving a plan executes it: approvers must be able to read what it would
		// do.
		role("approver", own(read, all...), own([]string{"create", "delete"}, approvals)),
		// A grant gives other namespaces sensitive values of this one, which no other role can read.
		role("granter", granted(slices.Concat(read, write))),
		// A user who may create a Provider makes the servers run a program of their
		// choice. The program has the rights of the servers' provider user and the
		// credentials of all ProviderConfigs: this is code execution.
		role("operator", own(read, all...), own(write, slices.Concat(running, policies)...)),
	}
}
