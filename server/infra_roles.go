package server

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providers"
)

// infraRoles divide what can be done about infrastructure, and are bound to nobody. They add up: who writes and
// approves has two of them.
//
// ResourceStates and PlanSecrets are in none: they hold secrets. Nor does Kubernetes' own role edit, or admin, have
// any of this.
func infraRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	write := []string{"create", "update", "patch", "delete", "deletecollection"}
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "atoll:infra-" + name}, Rules: rules}
	}
	own := func(verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: resources, Verbs: verbs}
	}
	// What is of the viewer's and the editor's is the sum of roles: of these, and of two for each Provider, since
	// a role cannot name all groups below a domain.
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
	shown := append(plans, v1alpha1.PlanResource.Resource+"/changes")
	policies := []string{v1alpha1.SyncPolicyResource.Resource, v1alpha1.ClusterSyncPolicyResource.Resource}
	running := []string{v1alpha1.ProviderResource.Resource, v1alpha1.ProviderConfigResource.Resource}
	approvals := v1alpha1.ApprovalResource.Resource
	all := slices.Concat(shown, policies, running, []string{approvals, v1alpha1.ProviderResource.Resource + "/types"})
	return []rbacv1.ClusterRole{
		sum("viewer", providers.AggregateToViewer),
		part("viewer:plans", providers.AggregateToViewer, own(read, all...)),
		sum("editor", providers.AggregateToEditor),
		part("editor:plans", providers.AggregateToEditor, own(read, all...), own(write, plans...)),
		// To approve is to have it done: whom this is given has to be able to read what a plan would do.
		role("approver", own(read, all...), own([]string{"create", "delete"}, approvals)),
		// Whoever may create a Provider has the servers run a program of their choice, with the rights of the
		// servers' provider user and the credentials of everybody's ProviderConfigs: this is code execution.
		role("operator", own(read, all...), own(write, slices.Concat(running, policies)...)),
	}
}
