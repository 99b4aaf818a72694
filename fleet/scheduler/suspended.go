package scheduler

import (
	"context"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// resume takes the suspension from the binding of an object that is not decided about any more, if its policy
// no longer suspends or is gone. Otherwise no one would, and the copies would stay for ever.
func (s *scheduler) resume(ctx context.Context, b *v1alpha1.ResourceBinding) (*v1alpha1.ResourceBinding, error) {
	if !b.Spec.Suspend || s.isSuspendedBy(b.Spec.Policy, b.Namespace) {
		return b, nil
	}
	spec := b.Spec
	spec.Suspend = false
	return s.updateSpec(ctx, b, spec)
}

// isSuspendedBy reports whether a policy exists and suspends. A policy that was made again under its name
// counts as the same.
func (s *scheduler) isSuspendedBy(p *v1alpha1.PolicyReference, namespace string) bool {
	if p == nil {
		return false
	}
	if p.Kind == "ClusterPlacement" {
		policy, exists := s.Policies.ClusterPlacements.Get(p.Name)
		return exists && policy.Spec.Suspend
	}
	policy, exists := s.Policies.Placements.Get(namespace + "/" + p.Name)
	return exists && policy.Spec.Suspend
}

// requeueSuspended queues the objects that are suspended, and perhaps deleted.
func (s *scheduler) requeueSuspended() {
	for _, b := range s.Bindings.All() {
		if b.Spec.Suspend {
			s.queue.Add(boundBy(b))
		}
	}
}
