package overlay

import (
	"cmp"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Stored is an object with metadata.
type Stored interface {
	runtime.Object
	metav1.Object
}

// Object is an object of a built-in resource.
type Object struct {
	Resource schema.GroupResource
	Object   Stored
}

// Objects returns the default roles of Kubernetes, the namespaces, and the objects that every namespace has. The namespace default
// is the last one: a workspace that has it has all of them. The computation takes milliseconds, so a server does it once.
// further are the roles of Atoll's own kinds.
func Objects(rootCA []byte, further []rbacv1.ClusterRole) (all []Object) {
	add := func(resource string, object Stored) {
		all = append(all, Object{schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, object})
	}
	roles := withAggregatedRules(slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles(), further))
	for i := range roles {
		add("clusterroles", &roles[i])
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		add("clusterrolebindings", &binding)
	}
	for _, list := range bootstrappolicy.NamespaceRoles() {
		for _, role := range list {
			add("roles", &role)
		}
	}
	for _, list := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range list {
			add("rolebindings", &binding)
		}
	}
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, metav1.NamespaceDefault} {
		all = append(all, Companions(name, rootCA)...)
		all = append(all, Object{Namespaces, activeNamespace(name)})
	}
	return all
}

// OwnerBinding gives the owner of a workspace all permissions in it.
func OwnerBinding(owner string) Object {
	return Object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "workspace-owner"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: owner}},
	}}
}

// withAggregatedRules sets the rules of ClusterRoles that aggregate others, as the controller does in a cluster.
func withAggregatedRules(roles []rbacv1.ClusterRole) []rbacv1.ClusterRole {
	slices.SortFunc(roles, ByName) // the controller adds rules in this order, and would change another one
	// admin aggregates edit, which aggregates view: repeat until nothing changes.
	for changed := true; changed; {
		changed = false
		for i := range roles {
			if rules := AggregatedRules(&roles[i], roles); roles[i].AggregationRule != nil && !equality.Semantic.DeepEqual(rules, roles[i].Rules) {
				roles[i].Rules, changed = rules, true
			}
		}
	}
	return roles
}

// ByName orders roles.
func ByName(a, b rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) }

// AggregatedRules returns the rules of a role that aggregates others, none if it does not.
func AggregatedRules(of *rbacv1.ClusterRole, roles []rbacv1.ClusterRole) (rules []rbacv1.PolicyRule) {
	if of.AggregationRule == nil {
		return nil
	}
	for _, selector := range of.AggregationRule.ClusterRoleSelectors {
		matches, err := metav1.LabelSelectorAsSelector(&selector)
		if err != nil {
			continue
		}
		for i := range roles {
			if roles[i].Name == of.Name || !matches.Matches(labels.Set(roles[i].Labels)) {
				continue
			}
			for _, rule := range roles[i].Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}
