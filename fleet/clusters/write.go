package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// access returns how to reach a cluster, or the problem.
func (c *controller) access(cluster *v1alpha1.Cluster) (*fleet.Access, *problem) {
	a, err := c.Clusters.Access(cluster)
	if err != nil {
		return nil, &problem{v1alpha1.ReasonInvalidKubeConfig, err.Error()}
	}
	return a, nil
}

// writeStatus writes changes of a cluster's status, and reports whether there were any.
func (c *controller) writeStatus(ctx context.Context, cluster *v1alpha1.Cluster, o observation) (wrote bool, err error) {
	now := metav1.NewTime(c.Clock.Now())
	status := *cluster.Status.DeepCopy()
	status.ObservedGeneration = cluster.Generation
	status.Taints = observedTaints(cluster.Spec.Taints, cluster.Status.Taints, now)
	verdict := o.health.last
	ready := metav1.Condition{Type: v1alpha1.ClusterReady, ObservedGeneration: cluster.Generation, Status: metav1.ConditionFalse,
		Reason: verdict.reason, Message: verdict.message}
	probed := o.health.probed
	switch {
	case o.problem != nil:
		// Reading the Secret was the probe, and it failed.
		ready.Reason, ready.Message, probed = o.problem.reason, o.problem.message, now.Time
	case verdict.at.IsZero():
		if meta.FindStatusCondition(status.Conditions, v1alpha1.ClusterReady) != nil {
			return false, nil // keep the recorded state until a probe has a result
		}
		ready.Status, ready.Reason, ready.Message = metav1.ConditionUnknown, v1alpha1.ReasonClusterStatusUnknown, "not probed yet"
	case verdict.ready:
		ready.Status = metav1.ConditionTrue
		status.Version, status.ID = verdict.version, verdict.id
		o.count(&status)
		settleRoom(&cluster.Status, &status, now.Time)
	}
	if verdict.claim != nil {
		status.Claim = verdict.claim
	}
	was := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady)
	ready.LastTransitionTime = now
	if was != nil && was.Status == ready.Status {
		ready.LastTransitionTime = was.LastTransitionTime
	}
	status.UnreachableSince = unreachableSince(cluster, was, &ready, now)
	status.Conditions = replaceCondition(status.Conditions, ready)
	changed := !equality.Semantic.DeepEqual(status, cluster.Status)
	if !changed && !c.needsRefresh(cluster, ready.Status == metav1.ConditionTrue, probed) {
		return false, nil
	}
	if !probed.IsZero() {
		at := metav1.NewTime(probed)
		status.LastProbeTime = &at
	}
	if err := c.patchStatus(ctx, cluster, status); err != nil {
		return true, err
	}
	if (was == nil || was.Status != ready.Status) && ready.Status != metav1.ConditionUnknown {
		kind := corev1.EventTypeNormal
		if ready.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeWarning
		}
		c.Events.Event(cluster, kind, ready.Reason, ready.Message)
	}
	return true, nil
}

// unreachableSince returns since when a cluster is unreachable; nil if it is not. The toleration counts from then: while
// its credentials were refused, the cluster was alive.
func unreachableSince(cluster *v1alpha1.Cluster, was, ready *metav1.Condition, now metav1.Time) *metav1.Time {
	switch {
	case ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonClusterUnreachable:
		return nil
	case was == nil || was.Status != metav1.ConditionFalse || was.Reason != v1alpha1.ReasonClusterUnreachable:
		return &now
	case cluster.Status.UnreachableSince != nil:
		return cluster.Status.UnreachableSince
	}
	return &was.LastTransitionTime // recorded by an earlier version
}

// needsRefresh reports whether LastProbeTime is due for a refresh without other changes.
func (c *controller) needsRefresh(cluster *v1alpha1.Cluster, ready bool, probed time.Time) bool {
	last := cluster.Status.LastProbeTime
	switch {
	case probed.IsZero():
		return false
	case last == nil:
		return true
	case !ready && last.Time.Before(c.Started):
		return true // placement waits for this leader's own observation
	case probed.Sub(last.Time) < refreshInterval:
		return false
	}
	// For a new leader all may be due. A thousand writes at once without information would delay
	// useful ones, and would recur together every minute.
	return !ready || probed.Sub(c.Started) >= refreshOffset(cluster.Name)
}

// refreshOffset spreads the clusters over the refresh interval.
func refreshOffset(cluster string) time.Duration {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(cluster)) // never fails
	return time.Duration(float64(refreshInterval) * float64(sum.Sum32()) / (1 << 32))
}

func replaceCondition(conditions []metav1.Condition, condition metav1.Condition) []metav1.Condition {
	out := slices.Clone(conditions)
	for i := range out {
		if out[i].Type == condition.Type {
			out[i] = condition
			return out
		}
	}
	return append(out, condition)
}

// patchStatus writes the status, except for the parts of others: the front proxy, the types, the taints
// of policies, and other conditions. It returns a conflict if the Cluster was replaced or has changed: the
// status replaces the recorded one, so a write from an outdated cache could remove the ID.
func (c *controller) patchStatus(ctx context.Context, cluster *v1alpha1.Cluster, status v1alpha1.ClusterStatus) error {
	status.FrontProxy, status.Types, status.PolicyTaints = nil, nil, nil
	status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool {
		return c.Type != v1alpha1.ClusterReady && c.Type != v1alpha1.ClusterLeaving
	})
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("encode the status of cluster %s: %w", cluster.Name, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": cluster.Name, "uid": string(cluster.UID), "resourceVersion": cluster.ResourceVersion},
		"status":   u,
	}}
	if err := fleet.ApplyStatus(ctx, c.Dynamic.Resource(v1alpha1.ClusterResource), apply, FieldManager); err != nil {
		return fmt.Errorf("write the status of cluster %s: %w", cluster.Name, err)
	}
	return nil
}

// forgetTakeOver removes the annotation by which a user let this control plane replace another one, once
// it has. Otherwise this one would do so again when a user lets the other one come back.
func (c *controller) forgetTakeOver(ctx context.Context, cluster *v1alpha1.Cluster) error {
	if _, set := cluster.Annotations[v1alpha1.TakeOverAnnotation]; !set || !c.ControlPlane.Owns(cluster) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": cluster.UID, "resourceVersion": cluster.ResourceVersion,
		"annotations": map[string]any{v1alpha1.TakeOverAnnotation: nil}}})
	if err != nil {
		return err
	}
	_, err = c.Dynamic.Resource(v1alpha1.ClusterResource).
		Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("remove annotation %s of cluster %s: %w", v1alpha1.TakeOverAnnotation, cluster.Name, err)
	}
	return nil
}

func (c *controller) ensureFinalizer(ctx context.Context, cluster *v1alpha1.Cluster) error {
	if slices.Contains(cluster.Finalizers, v1alpha1.ClusterFinalizer) {
		return nil
	}
	return c.setFinalizers(ctx, cluster, append(slices.Clone(cluster.Finalizers), v1alpha1.ClusterFinalizer))
}

func (c *controller) setFinalizers(ctx context.Context, cluster *v1alpha1.Cluster, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": cluster.UID, "resourceVersion": cluster.ResourceVersion, "finalizers": finalizers}})
	if err != nil {
		return err
	}
	_, err = c.Dynamic.Resource(v1alpha1.ClusterResource).
		Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("set the finalizers of cluster %s: %w", cluster.Name, err)
	}
	return nil
}
