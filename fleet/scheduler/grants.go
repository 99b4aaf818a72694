package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra/grants"
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
	var all []grants.Spec
	for grant := range s.Objects.All(interpret.GrantKind(), needed.Namespace) {
		var g struct {
			Spec grants.Spec `json:"spec"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(grant.Object, &g); err == nil && grant.GetDeletionTimestamp() == nil {
			all = append(all, g.Spec)
		}
	}
	return grants.Decide(all, grantedFrom(user), grantedTo(needed)) != grants.None
}

func grantedFrom(user object) grants.From {
	return grants.From{Group: user.Group, Kind: user.Kind, Namespace: user.Namespace}
}

func grantedTo(needed object) grants.To {
	return grants.To{Group: needed.Group, Kind: needed.Kind, Name: needed.Name}
}

// reportForbidden reports the objects of other namespaces that an object names and that do not go where it goes.
func (s *scheduler) reportForbidden(obj *unstructured.Unstructured, user object, needs []object) {
	for _, needed := range needs {
		if s.mayUse(user, needed) {
			continue
		}
		s.Events.Event(obj, corev1.EventTypeWarning, ReasonRefNotPermitted, fmt.Sprintf("%s %s/%s does not go where this %s goes: %s",
			needed.Kind, needed.Namespace, needed.Name, user.Kind, grants.Refusal(grantedFrom(user), needed.Namespace, grantedTo(needed))))
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
