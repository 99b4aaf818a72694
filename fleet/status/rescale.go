package status

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// ScaleManager is the field manager that writes the replica counts of autoscaled objects.
const ScaleManager = "atoll-autoscaler"

// enqueueTargets queues the bindings of an autoscaler's targets, whose replica counts depend on its
// reports.
func (c *controller) enqueueTargets(k interpret.KindInfo, obj *unstructured.Unstructured) {
	if k.GroupKind() != interpret.AutoscalerKind() {
		return
	}
	targets, err := k.Follows(obj)
	if err != nil {
		return // the scheduler reports it
	}
	for _, target := range targets {
		key := types.NamespacedName{Namespace: target.To.Namespace, Name: v1alpha1.BindingName(target.To.GroupKind, target.To.Name)}
		if _, bound := c.Bindings.Get(key); bound {
			c.queue.AddAfter(key, batchWindow)
		}
	}
}

// rescale writes the count that the autoscalers of the clusters decided into the object's spec, as an
// autoscaler does in one cluster. It changes no shares: see placement.Request.Settled.
//
// In a Manual namespace the spec stays as a user wrote it: any other content would wait for a plan.
func (c *controller) rescale(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	if b.Spec.ScaledBy == nil || b.Spec.Manual != nil || obj.GetDeletionTimestamp() != nil {
		return nil
	}
	autoscaler, bound := c.Bindings.Get(types.NamespacedName{Namespace: b.Namespace, Name: v1alpha1.BindingName(interpret.AutoscalerKind(), b.Spec.ScaledBy.Name)})
	if !bound {
		return nil
	}
	scaler, exists := c.Objects.Get(interpret.AutoscalerKind(), autoscaler.ObjectName())
	if !exists {
		return nil
	}
	clusters, err := scaledClusters(b, autoscaler)
	if err != nil {
		return err
	}
	replicas, changed := k.Rescaled(obj, scaler, clusters)
	if !changed {
		return nil
	}
	// The version prevents that a user's change is reverted by a count from before it.
	change := map[string]any{"metadata": map[string]any{"uid": string(obj.GetUID()), "resourceVersion": obj.GetResourceVersion()}}
	if err := unstructured.SetNestedField(change, int64(replicas), k.ReplicasPath()...); err != nil {
		return fmt.Errorf("encode the replicas of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode the replicas of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	if _, err := c.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()).Patch(ctx, obj.GetName(), types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: ScaleManager, FieldValidation: metav1.FieldValidationIgnore}); err != nil {
		return fmt.Errorf("write the replicas of %s %s/%s, which HorizontalPodAutoscaler %s decided: %w", k.Kind, obj.GetNamespace(), obj.GetName(), b.Spec.ScaledBy.Name, err)
	}
	return nil
}

// scaledClusters returns what the autoscaler decided in each cluster of its target.
func scaledClusters(target, autoscaler *v1alpha1.ResourceBinding) ([]interpret.ScaledCluster, error) {
	out := make([]interpret.ScaledCluster, 0, len(target.Spec.Clusters))
	for _, share := range target.Spec.Clusters {
		c := interpret.ScaledCluster{Share: share.Replicas}
		if state, reported := autoscaler.State(share.Name); reported && state.Status != nil {
			if err := utiljson.Unmarshal(state.Status.Raw, &c.Status); err != nil {
				return nil, fmt.Errorf("decode the status of HorizontalPodAutoscaler %s/%s that cluster %s reported: %w", autoscaler.Namespace, autoscaler.Spec.Resource.Name, share.Name, err)
			}
		}
		out = append(out, c)
	}
	return out, nil
}
