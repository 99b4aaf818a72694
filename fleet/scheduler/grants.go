package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// ReasonRefNotPermitted is the reason of the event for a reference to an object of another namespace that no
// ReferenceGrant there permits. The word is Gateway API's.
const ReasonRefNotPermitted = "RefNotPermitted"

// mayUse reports whether an object goes where a user of it goes. To name a Secret of another namespace must not bring it
// into a cluster of the user's choice: that namespace has to permit it, or the object itself goes along with the user.
func (s *scheduler) mayUse(user, needed object) bool {
	from, to := referenceOf(user), referenceOf(needed)
	if !interpret.NeedsGrant(from, to) || s.needs.declares(needed, user) {
		return true
	}
	for grant := range s.Objects.All(interpret.GrantKind(), needed.Namespace) {
		if interpret.Permits(grant, from, to) {
			return true
		}
	}
	return false
}

// reportForbidden reports the objects of other namespaces that an object names and that do not go where it goes.
func (s *scheduler) reportForbidden(obj *unstructured.Unstructured, user object, needs []object) {
	for _, needed := range needs {
		if s.mayUse(user, needed) {
			continue
		}
		s.Events.Event(obj, corev1.EventTypeWarning, ReasonRefNotPermitted, fmt.Sprintf("%s %s/%s does not go where this %s goes: no ReferenceGrant in namespace %s permits the reference. "+
			"Create one with spec.from {group: %q, kind: %s, namespace: %s} and spec.to {group: %q, kind: %s, name: %s}",
			needed.Kind, needed.Namespace, needed.Name, user.Kind, needed.Namespace, user.Group, user.Kind, user.Namespace, needed.Group, needed.Kind, needed.Name))
	}
}

// grantChanged queues the objects of a namespace that objects of other namespaces name.
func (s *scheduler) grantChanged(namespace string) {
	for _, needed := range s.needs.neededAcross(namespace) {
		s.queue.Add(needed)
	}
}

func referenceOf(o object) interpret.Reference {
	return interpret.Reference{GroupKind: o.GroupKind, Namespace: o.Namespace, Name: o.Name}
}
