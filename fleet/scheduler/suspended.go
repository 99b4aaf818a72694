package scheduler

import (
	"context"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// resume takes the suspension from the binding of an object that is not decided about any more, if its policy
// no longer suspends or is gone. Otherwise no one would, and the copies would stay.
func (s *scheduler) resume(ctx context.Context, b *v1alpha1.ResourceBinding) (*v1alpha1.ResourceBinding, error) {
	if !b.Spec.Suspend || s.isSuspendedByPolicy(b) {
		return b, nil
	}
	spec := b.Spec
	spec.Suspend = false
	return s.updateSpec(ctx, b, spec)
}

// isSuspendedByPolicy reports whether the policy of a binding exists and suspends. A policy that was made again
// under its name counts as the same.
func (s *scheduler) isSuspendedByPolicy(b *v1alpha1.ResourceBinding) bool {
	snap := s.snapshot()
	return b.Spec.Policy != nil && snap.Policies != nil && snap.Policies.Suspends(b.Spec.Policy, b.Namespace, placement.Following{Adopted: b.Spec.Adopted})
}

// requeueSuspended queues the objects that are suspended, and perhaps deleted.
func (s *scheduler) requeueSuspended() {
	for _, b := range s.Bindings.All() {
		if b.Spec.Suspend {
			s.queue.Add(boundBy(b))
		}
	}
}
