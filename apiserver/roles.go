package apiserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/util/retry"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// installRoles creates the roles and bindings when the server starts, with the code that
// creates upstream's: missing rules and subjects are added, and others stay, except retired rules.
func installRoles(s *genericapiserver.GenericAPIServer, cfg Config) error {
	roles, bindings := cfg.ClusterRoles, cfg.ClusterRoleBindings
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
	return s.AddPostStartHook("atoll/bootstrap-roles", func(hook genericapiserver.PostStartHookContext) error {
		if err := retireRules(hook, shipped, cfg.RetiredRules); err != nil {
			return err
		}
		return policy.EnsureRBACPolicy()(hook)
	})
}

// retireRules removes rules of earlier versions from roles. Like upstream's code, it tries again for a while: the datastore may
// not answer yet.
func retireRules(hook genericapiserver.PostStartHookContext, roles []rbacv1.ClusterRole, rules map[string]rbacv1.PolicyRule) error {
	client, err := rbacclient.NewForConfig(hook.LoopbackClientConfig)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(hook, time.Second, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		for _, role := range roles {
			rule, retired := rules[role.Name]
			if !retired {
				continue
			}
			if err := retireRule(ctx, client.ClusterRoles(), role, rule); err != nil {
				last = fmt.Errorf("remove a rule of an earlier version from ClusterRole %s: %w", role.Name, err)
				return false, nil
			}
		}
		return true, nil
	})
	if wait.Interrupted(err) && hook.Err() == nil {
		return last
	}
	return err
}

// retireRule removes a rule from a role that exists, and adds those that the role has now: its users must not be without
// rights in between. Another server of the workspace may do the same at the same time.
func retireRule(ctx context.Context, client rbacclient.ClusterRoleInterface, shipped rbacv1.ClusterRole, rule rbacv1.PolicyRule) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		role, err := client.Get(ctx, shipped.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		others := slices.DeleteFunc(slices.Clone(role.Rules), func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) })
		if len(others) == len(role.Rules) || role.Annotations[rbacv1.AutoUpdateAnnotationKey] == "false" {
			return nil
		}
		role.Rules = append(others, shipped.Rules...)
		_, err = client.Update(ctx, role, metav1.UpdateOptions{})
		return err
	})
}
