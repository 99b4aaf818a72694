package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// installRoles creates the roles and bindings when the server starts, with the code that
// creates upstream's: missing rules and subjects are added, and others stay.
func installRoles(s *genericapiserver.GenericAPIServer, roles []rbacv1.ClusterRole, bindings []rbacv1.ClusterRoleBinding) error {
	if len(roles)+len(bindings) == 0 {
		return nil
	}
	var shipped []rbacv1.ClusterRole
	for _, role := range roles {
		role := *role.DeepCopy()
		metav1.SetMetaDataAnnotation(&role.ObjectMeta, rbacv1.AutoUpdateAnnotationKey, "true")
		shipped = append(shipped, role)
	}
	var bound []rbacv1.ClusterRoleBinding
	for _, binding := range bindings {
		binding := *binding.DeepCopy()
		metav1.SetMetaDataAnnotation(&binding.ObjectMeta, rbacv1.AutoUpdateAnnotationKey, "true")
		bound = append(bound, binding)
	}
	policy := &rbacrest.PolicyData{ClusterRoles: shipped, ClusterRoleBindings: bound}
	return s.AddPostStartHook("atoll/bootstrap-roles", policy.EnsureRBACPolicy())
}
