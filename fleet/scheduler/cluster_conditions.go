package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// conditionsInterval is how often the conditions of Clusters are written at most.
const conditionsInterval = time.Second

// ownConditions are the conditions of Clusters that the scheduler writes.
var ownConditions = []string{v1alpha1.ClusterFailoverHeld, v1alpha1.ClusterDraining}

// signalConditions signals that conditions of Clusters may have changed. It never blocks.
func (c *cache) signalConditions() {
	select {
	case c.conditionsChanged <- struct{}{}:
	default:
	}
}

// followClusterConditions writes the conditions of Clusters until ctx ends.
func (s *scheduler) followClusterConditions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cache.conditionsChanged:
		}
		for _, c := range s.Clusters.All() {
			if err := s.writeClusterConditions(ctx, c); err != nil && ctx.Err() == nil {
				s.Log.Warn("write of cluster conditions failed; retrying", "cluster", c.Name, "error", err)
				s.cache.signalConditions()
			}
		}
		pause := s.Clock.NewTimer(conditionsInterval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C():
		}
	}
}

// writeClusterConditions writes the scheduler's conditions of a Cluster if they differ from the recorded ones.
func (s *scheduler) writeClusterConditions(ctx context.Context, c *v1alpha1.Cluster) error {
	desired := s.clusterConditions(c)
	changed := false
	conditions := make([]any, 0, len(desired))
	for _, kind := range ownConditions {
		was := meta.FindStatusCondition(c.Status.Conditions, kind)
		is := desired[kind]
		if is == nil {
			changed = changed || was != nil
			continue
		}
		is.Type, is.ObservedGeneration, is.LastTransitionTime = kind, c.Generation, metav1.NewTime(s.Clock.Now())
		if was != nil && was.Status == is.Status {
			is.LastTransitionTime = was.LastTransitionTime
		}
		// Clients that change the spec wait for its generation.
		if was == nil || was.Status != is.Status || was.Reason != is.Reason || was.Message != is.Message || was.ObservedGeneration != is.ObservedGeneration {
			changed = true
		}
		u, err := toUnstructured(is)
		if err != nil {
			return err
		}
		conditions = append(conditions, u.Object)
	}
	if !changed {
		return nil
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": c.Name, "uid": string(c.UID)},
		"status":   map[string]any{"conditions": conditions},
	}}
	err := fleet.ApplyStatus(ctx, s.Dynamic.Resource(v1alpha1.ClusterResource), apply, FieldManager)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or was replaced by another one of its name
	}
	if err != nil {
		return fmt.Errorf("set the conditions of cluster %s: %w", c.Name, err)
	}
	for kind, is := range desired {
		was := meta.FindStatusCondition(c.Status.Conditions, kind)
		if is == nil || was != nil && was.Reason == is.Reason || is.Reason == v1alpha1.ReasonFewUnreachable {
			continue
		}
		level := corev1.EventTypeNormal
		if is.Reason == v1alpha1.ReasonManyUnreachable || is.Reason == v1alpha1.ReasonDrainBlocked {
			level = corev1.EventTypeWarning
		}
		s.Events.Event(c, level, is.Reason, is.Message)
	}
	return nil
}

// onlyOwnConditionsDiffer reports whether nothing but the scheduler's own conditions differs between two states of a
// Cluster. Their messages change with every object that leaves, and must not cause decisions about all others.
func onlyOwnConditionsDiffer(a, b *v1alpha1.Cluster) bool {
	return equality.Semantic.DeepEqual(withoutOwnConditions(a), withoutOwnConditions(b))
}

func withoutOwnConditions(c *v1alpha1.Cluster) *v1alpha1.Cluster {
	out := *c
	out.ResourceVersion, out.ManagedFields = "", nil
	out.Status.Conditions = slices.DeleteFunc(slices.Clone(c.Status.Conditions), func(c metav1.Condition) bool { return slices.Contains(ownConditions, c.Type) })
	return &out
}

// clusterConditions returns the scheduler's conditions of a Cluster; nil for those that it should not have.
func (s *scheduler) clusterConditions(c *v1alpha1.Cluster) map[string]*metav1.Condition {
	return map[string]*metav1.Condition{v1alpha1.ClusterFailoverHeld: heldCondition(s.fleetSnapshot(), c), v1alpha1.ClusterDraining: s.drainCondition(c)}
}

// heldCondition returns the condition FailoverHeld of a Cluster; nil if no failover of it was ever held.
func heldCondition(f *placement.Fleet, c *v1alpha1.Cluster) *metav1.Condition {
	together, of, held := f.Hold(c.Name)
	switch {
	case held:
		return &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManyUnreachable,
			Message: fmt.Sprintf("%d of %d clusters became unreachable within a minute of each other, so the fault is probably in Atoll's own network: nothing leaves them. "+
				"If %s is lost, add a taint with the effect NoExecute to its spec.taints, or run `atoll leave %s --cascade=orphan`: then its objects move", together, of, c.Name, c.Name)}
	case meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterFailoverHeld) == nil:
		return nil
	}
	return &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFewUnreachable,
		Message: "no more than half of the clusters are unreachable; if this one is, the time in spec.evictAfter counts from when that became so"}
}
