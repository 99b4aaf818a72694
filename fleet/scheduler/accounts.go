package scheduler

import (
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// The rights of ServiceAccounts tell operators from other programs.

const rbacGroup = "rbac.authorization.k8s.io"

func isRBAC(gk schema.GroupKind) bool { return gk.Group == rbacGroup }

func isRoleBinding(gk schema.GroupKind) bool {
	return isRBAC(gk) && (gk.Kind == "RoleBinding" || gk.Kind == "ClusterRoleBinding")
}

func accountObject(namespace, name string) object {
	return object{schema.GroupKind{Kind: "ServiceAccount"}, types.NamespacedName{Namespace: namespace, Name: name}}
}

// rolesOf returns the roles of the account of a workload's pods.
func (s *scheduler) rolesOf(k interpret.KindInfo, obj *unstructured.Unstructured) (roles []object) {
	account := accountObject(obj.GetNamespace(), interpret.AccountOf(interpret.PodSpec(obj.Object)))
	// Bindings of an account that each cluster creates itself follow the workload.
	for _, of := range []object{account, refOf(k.GroupKind(), obj)} {
		for _, o := range s.needs.neededBy(of) {
			if !isRoleBinding(o.GroupKind) {
				continue
			}
			binding, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
			if !exists || !grantsTo(binding, account) {
				continue
			}
			for _, role := range s.needs.neededBy(o) {
				if isRBAC(role.GroupKind) && !slices.Contains(roles, role) {
					roles = append(roles, role)
				}
			}
		}
	}
	return roles
}

// rightsOf returns the rights of the account of a workload's pods.
func (s *scheduler) rightsOf(k interpret.KindInfo, obj *unstructured.Unstructured) (sum interpret.Rights) {
	for _, o := range s.rolesOf(k, obj) {
		if role, exists := s.Objects.Get(o.GroupKind, o.NamespacedName); exists {
			sum = sum.Plus(interpret.RightsOf(role))
		}
	}
	return sum
}

// rolesDelay is how long after an account its roles may come.
const rolesDelay = 2 * time.Second

// rightsUnknown returns how long the rights of a workload's account may still be unknown: in some manifests the
// account and its roles come after the workload. Without the account its pods cannot start anyway.
func (s *scheduler) rightsUnknown(obj *unstructured.Unstructured) time.Duration {
	name := interpret.AccountOf(interpret.PodSpec(obj.Object))
	if name == interpret.DefaultServiceAccount {
		return 0 // every cluster makes it
	}
	o := accountObject(obj.GetNamespace(), name)
	account, exists := s.Objects.Metadata(o.GroupKind, o.NamespacedName)
	if !exists {
		return contentDelay
	}
	created := account.GetCreationTimestamp()
	if !created.After(obj.GetCreationTimestamp().Time) {
		return 0
	}
	return rolesDelay - s.Clock.Since(created.Time)
}

// typesOf iterates over the bindings of the types on which a workload may work. A type may come twice.
func (s *scheduler) typesOf(k interpret.KindInfo, obj *unstructured.Unstructured) iter.Seq2[object, *v1alpha1.ResourceBinding] {
	return func(yield func(object, *v1alpha1.ResourceBinding) bool) {
		for _, role := range s.rolesOf(k, obj) {
			for _, o := range s.needs.neededBy(role) {
				if b, bound := s.assumed.Get(o.binding()); bound && o.GroupKind == crdKind() && !yield(o, b) {
					return
				}
			}
		}
	}
}

// nearTypes prefers, for a workload that is not placed yet, the clusters that have types on which it may
// work: another operator works on their objects there. In another cluster it would take the types along, and
// objects could go there, where the other operator does not run.
func (snap *Snapshot) nearTypes(r *placement.Request, k interpret.KindInfo, obj *unstructured.Unstructured) {
	if snap.Types == nil || len(r.Previous) > 0 || !k.MakesPods() {
		return
	}
	seen := map[object]bool{}
	for o, b := range snap.Types(k, obj) {
		if seen[o] || b.DeletionTimestamp != nil {
			continue
		}
		seen[o] = true
		if r.Group == nil {
			r.Group = &placement.Group{}
		}
		if r.Group.Near == nil {
			r.Group.Near = map[string]int32{}
		}
		for _, share := range b.Spec.Clusters {
			r.Group.Near[share.Name]++
		}
	}
}

func grantsTo(binding *unstructured.Unstructured, account object) bool {
	for _, a := range interpret.Grants(binding) {
		if a.Namespace == account.Namespace && (a.Name == "" || a.Name == account.Name) {
			return true
		}
	}
	return false
}

// requeueAccountsOf queues the workloads whose account has a role that was added or changed.
func (s *scheduler) requeueAccountsOf(o object) {
	bindings := []object{o}
	if !isRoleBinding(o.GroupKind) {
		bindings = s.needs.usersOf(o)
	}
	for _, b := range bindings {
		if !isRoleBinding(b.GroupKind) {
			continue
		}
		for _, user := range s.needs.usersOf(b) {
			s.queue.Add(user)
			for _, workload := range s.needs.usersOf(user) {
				s.queue.Add(workload)
			}
		}
	}
}

// accountRoles are the roles of the accounts of a State.
type accountRoles struct {
	rights   map[object]interpret.Rights // by role
	types    map[object][]object         // by role
	bindings map[object][]object         // roles by account; one without a name is all of its namespace
}

func newAccountRoles() accountRoles {
	return accountRoles{rights: map[object]interpret.Rights{}, types: map[object][]object{}, bindings: map[object][]object{}}
}

// add records a role or a binding of one.
func (a *accountRoles) add(k interpret.KindInfo, obj *unstructured.Unstructured) {
	o := refOf(k.GroupKind(), obj)
	refs, err := k.Needs(obj)
	if err != nil {
		return
	}
	if !isRoleBinding(o.GroupKind) {
		a.rights[o] = interpret.RightsOf(obj)
		for _, ref := range refs {
			a.types[o] = append(a.types[o], objectOfRef(ref))
		}
		return
	}
	for _, account := range interpret.Grants(obj) {
		of := objectOfRef(account)
		for _, ref := range refs {
			a.bindings[of] = append(a.bindings[of], objectOfRef(ref))
		}
	}
}

// of returns the roles of the account of a workload's pods.
func (a *accountRoles) of(obj *unstructured.Unstructured) (roles []object) {
	for _, name := range []string{interpret.AccountOf(interpret.PodSpec(obj.Object)), ""} {
		roles = append(roles, a.bindings[accountObject(obj.GetNamespace(), name)]...)
	}
	return roles
}

func (s *State) rights(_ interpret.KindInfo, obj *unstructured.Unstructured) (sum interpret.Rights) {
	for _, role := range s.accounts.of(obj) {
		sum = sum.Plus(s.accounts.rights[role])
	}
	return sum
}

func (s *State) types(_ interpret.KindInfo, obj *unstructured.Unstructured) iter.Seq2[object, *v1alpha1.ResourceBinding] {
	return func(yield func(object, *v1alpha1.ResourceBinding) bool) {
		for _, role := range s.accounts.of(obj) {
			for _, o := range s.accounts.types[role] {
				if b := s.bindings[KeyOf(o.GroupKind, "", o.Name)]; b != nil && o.GroupKind == crdKind() && !yield(o, b) {
					return
				}
			}
		}
	}
}
