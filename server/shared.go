package server

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/aggregate"
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/coordination"
)

// onMissingNamespace returns the decision of the SharedAPI through which a member
// creates an object.
func (s *Server) onMissingNamespace(r apiserver.NamespaceRequest) (none apiserver.MissingNamespace) {
	cluster, ok := aggregate.ClusterOf(r.UserGroups)
	if !ok {
		return none
	}
	terms, _ := s.sharedAPI(cluster, r.APIGroup)
	switch terms.Namespaces {
	case v1alpha1.NamespacesProvide:
		return apiserver.MissingNamespace{Provide: true, Annotations: map[string]string{v1alpha1.ProvidedForAnnotation: cluster}}
	case v1alpha1.NamespacesRequire:
		return apiserver.MissingNamespace{Remedy: fmt.Sprintf(
			"the SharedAPI of %s has spec.namespaces: Require; ask an Atoll administrator to run `kubectl create namespace %s`",
			r.APIGroup, r.Namespace)}
	}
	return none
}

// memberRoles are for users of members. They are bound to no one: only an administrator
// can decide whom to trust with the leases of all clusters. For discovery and OpenAPI,
// members' users have Kubernetes' own roles: they are authenticated.
func memberRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "atoll:member-coordination"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordination.LeaseResource.Group},
			Resources: []string{coordination.LeaseResource.Resource},
			Verbs:     []string{"get", "list", "watch", "create", "update", "patch"},
		}},
	}}
}
