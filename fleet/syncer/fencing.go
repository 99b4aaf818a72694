package syncer

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Fence stops replicas of the cluster while there is no contact to the control plane.
type Fence interface {
	// Guard records an object before its replicas start: the path of the field with their count, and how long they run
	// without contact. If it fails, they must not start.
	Guard(ctx context.Context, binding types.NamespacedName, resource schema.GroupVersionResource, name types.NamespacedName, replicas []string, lease time.Duration) error
	// Release removes an object from the record.
	Release(ctx context.Context, binding types.NamespacedName) error
	// Stopped reports whether the replicas of an object are stopped, and how long they have to stay so at least.
	Stopped(binding types.NamespacedName) (stopped bool, wait time.Duration)
	// Lift lets stopped replicas run again, which the caller has confirmed. With a count it sets them.
	Lift(ctx context.Context, binding types.NamespacedName, replicas int32) error
}

// Fencing is the fence of a cluster.
type Fencing struct {
	Fence
	// Confirm verifies with a live read that a binding still names the cluster, with the same share.
	Confirm func(ctx context.Context, b *v1alpha1.ResourceBinding) (bool, error)
}

// confirmAgain is the pause before another read whether stopped replicas are to run.
const confirmAgain = 2 * time.Second

// guard records an object whose replicas are to stop without contact, before it is applied. It returns how long the
// replicas stay stopped at least; the object is not applied before.
func (s *Syncer) guard(ctx context.Context, t *target) (wait time.Duration, err error) {
	if s.fencing == nil {
		return 0, nil
	}
	b, path := t.binding, t.ReplicasPath()
	if b.Spec.Fencing == nil || path == nil {
		return 0, s.unguard(ctx, b.Key())
	}
	err = s.fencing.Guard(ctx, b.Key(), t.GVR(), b.ObjectName(), path, b.Spec.Fencing.Lease.Duration)
	if err != nil {
		return 0, err
	}
	stopped, wait := s.fencing.Stopped(b.Key())
	if !stopped || wait > 0 {
		return wait, nil
	}
	same, err := s.fencing.Confirm(ctx, b)
	if err != nil {
		return 0, fmt.Errorf("read whether the stopped replicas are to run here again: %w", err)
	}
	if !same {
		return confirmAgain, nil // the view is about to show what changed
	}
	replicas := int32(0) // the apply sets them
	if t.autoscaledPath() != nil {
		replicas = 1
		if t.share.Replicas != nil {
			replicas = max(1, *t.share.Replicas)
		}
	}
	if err := s.fencing.Lift(ctx, b.Key(), replicas); err != nil {
		return 0, fmt.Errorf("let the stopped replicas run again: %w", err)
	}
	t.record.invalidate()
	t.record.lifted = true
	return 0, nil
}

// unguard removes an object from the record of the fence.
func (s *Syncer) unguard(ctx context.Context, key types.NamespacedName) error {
	if s.fencing == nil {
		return nil
	}
	return s.fencing.Release(ctx, key)
}
