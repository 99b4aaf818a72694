package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// installRoles creates the roles when the server starts, with the code that creates
// upstream's: missing rules are added to a role, and other rules stay.
func installRoles(s *genericapiserver.GenericAPIServer, roles []rbacv1.ClusterRole) error {
	if len(roles) == 0 {
		return nil
	}
	var shipped []rbacv1.ClusterRole
	for _, role := range roles {
		role := *role.DeepCopy()
		if role.Annotations == nil {
			role.Annotations = map[string]string{}
		}
		role.Annotations[rbacv1.AutoUpdateAnnotationKey] = "true"
		shipped = append(shipped, role)
	}
	policy := &rbacrest.PolicyData{ClusterRoles: shipped}
	return s.AddPostStartHook("atoll/bootstrap-roles", policy.EnsureRBACPolicy())
}
