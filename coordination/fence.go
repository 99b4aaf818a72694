package coordination

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	admission "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/dynamic"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
)

// Rules define which writers need a token of which lease for writes to which resources.
type Rules struct {
	// Lease names the lease.
	Lease types.NamespacedName

	// Resources are the fenced resources: "widgets", or "widgets/status" for writes to the
	// status, which then need the token in .status.fence. No other subresource can carry a
	// token: do not grant it to the writers.
	Resources []schema.GroupResource

	// The writers that the fence binds: the operator, in every cluster. Others (people,
	// Atoll's own controllers) are not bound, because they have no leader. Users are full
	// names. A service account is bound in Atoll and in every member.
	Users           []string
	ServiceAccounts []types.NamespacedName
}

// InstallFence makes the server refuse a bound writer's write
//
//   - that has no token of the lease,
//   - whose token is older than the lease, as last seen by the server,
//   - whose token is older than the one on the object that it replaces; this check is
//     atomic with the write,
//   - or that deletes an object that does not have the current token, or without the
//     object's resourceVersion as a precondition.
//
// It creates the lease if it does not exist, and replaces the fence of an earlier call for
// the same lease. The config is for an administrator of the Atoll workspace, not of a
// member. Servers enforce the fence about a second after it returns.
func InstallFence(ctx context.Context, cfg *rest.Config, rules Rules) error {
	fail := func(err error) error { return fmt.Errorf("install the fence of Lease %s: %w", rules.Lease, err) }
	if err := rules.validate(); err != nil {
		return fail(err)
	}
	if err := ensureLease(ctx, cfg, rules.Lease); err != nil {
		return fail(err)
	}
	client, err := admissionclient.NewForConfig(cfg)
	if err != nil {
		return fail(err)
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	install := func(policy *admission.ValidatingAdmissionPolicyApplyConfiguration, binding *admission.ValidatingAdmissionPolicyBindingApplyConfiguration) error {
		if _, err := client.ValidatingAdmissionPolicies().Apply(ctx, policy, options); err != nil {
			return fail(err)
		}
		if _, err := client.ValidatingAdmissionPolicyBindings().Apply(ctx, binding, options); err != nil {
			return fail(err)
		}
		return nil
	}
	if err := install(rules.objectsPolicy()); err != nil {
		return err
	}
	return install(rules.leasePolicy())
}

// RemoveFence removes the policies that InstallFence created for a lease, but not the
// lease.
func RemoveFence(ctx context.Context, cfg *rest.Config, lease types.NamespacedName) error {
	client, err := admissionclient.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("remove the fence of Lease %s: %w", lease, err)
	}
	for _, suffix := range []string{leaseSuffix, objectsSuffix} {
		name := fenceName(lease, suffix)
		for _, err := range []error{
			client.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			client.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("remove the fence of Lease %s: %w", lease, err)
			}
		}
	}
	return nil
}

// IsFenced reports whether a fence refused a write because a later leadership has begun.
// The process is no longer the leader, and should exit.
func IsFenced(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), fencedOff)
}

func (r Rules) validate() error {
	switch {
	case r.Lease.Namespace == "" || r.Lease.Name == "":
		return errors.New("the namespace and name of the lease are required")
	case len(r.Resources) == 0:
		return errors.New("no resources: specify the resources that only the leader may write")
	case len(r.Users)+len(r.ServiceAccounts) == 0:
		return errors.New("no writers: specify the users or service accounts of the operator")
	}
	for _, res := range r.Resources {
		if res.Resource == "" || strings.Contains(res.Resource+res.Group, "*") {
			return fmt.Errorf("resource %q of group %q: list each resource, without wildcards", res.Resource, res.Group)
		}
		if _, sub, ok := strings.Cut(res.Resource, "/"); ok && sub != "status" {
			return fmt.Errorf("resource %s: of the subresources only status can carry a token; deny the writers this one by RBAC", res)
		}
		if res == LeaseResource.GroupResource() {
			return errors.New("leases cannot be fenced by a lease: no candidate could take over from a dead leader")
		}
	}
	if slices.Contains(r.Users, "") || slices.ContainsFunc(r.ServiceAccounts, func(n types.NamespacedName) bool {
		return n.Namespace == "" || n.Name == ""
	}) {
		return errors.New("a writer without a name")
	}
	return nil
}

// ensureLease creates the lease without a holder, if it does not exist.
func ensureLease(ctx context.Context, cfg *rest.Config, name types.NamespacedName) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	obj, err := leaseTo(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec:       coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0))},
	})
	if err != nil {
		return err
	}
	_, err = client.Resource(LeaseResource).Namespace(name.Namespace).Create(ctx, obj, metav1.CreateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("create the lease: %w: call coordination.Install first, and create the namespace", err)
	case apierrors.IsAlreadyExists(err):
		return nil
	}
	return err
}
