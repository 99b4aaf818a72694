package clusters

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// finalize removes the finalizer of a deleted Cluster when it has no bindings. The scheduler moves
// its shares to other clusters, and its syncer then removes its objects. Objects to orphan in a
// cluster that does not answer are no longer managed.
func (c *controller) finalize(ctx context.Context, cluster *v1alpha1.Cluster) error {
	_, orphan := cluster.Leaving()
	answers := meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.ClusterReady)
	bound := c.Bindings.On(cluster.Name)
	remaining := 0
	for _, b := range bound {
		_, chosen := b.Share(cluster.Name)
		if orphan && !answers && (!chosen || b.DeletionTimestamp != nil) {
			if err := c.RemoveClusterState(ctx, b, cluster.Name); err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
		remaining++
	}
	if remaining == 0 {
		if !slices.Contains(cluster.Finalizers, v1alpha1.ClusterFinalizer) {
			return nil
		}
		finalizers := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(f string) bool { return f == v1alpha1.ClusterFinalizer })
		err := c.setFinalizers(ctx, cluster, finalizers)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	// Binding events trigger a reconcile at once; this one covers missed events.
	c.queue.AddAfter(cluster.Name, 2*time.Second)
	return c.writeLeaving(ctx, cluster, remaining, answers)
}

func (c *controller) writeLeaving(ctx context.Context, cluster *v1alpha1.Cluster, remaining int, answers bool) error {
	condition := metav1.Condition{Type: v1alpha1.ClusterLeaving, Status: metav1.ConditionTrue, ObservedGeneration: cluster.Generation,
		Reason: v1alpha1.ReasonRemovingObjects, Message: fmt.Sprintf("%d objects are still bound to the cluster", remaining)}
	if !answers {
		condition.Reason = v1alpha1.ReasonWaitingForCluster
		condition.Message = fmt.Sprintf("%d objects may still be in the cluster, which does not answer: bring it back, or leave them there with `atoll leave %s --cascade=orphan`",
			remaining, cluster.Name)
	}
	condition.LastTransitionTime = metav1.NewTime(c.Clock.Now())
	if was := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterLeaving); was != nil {
		condition.LastTransitionTime = was.LastTransitionTime
		if equality.Semantic.DeepEqual(*was, condition) {
			return nil
		}
	}
	status := *cluster.Status.DeepCopy()
	status.Conditions = replaceCondition(status.Conditions, condition)
	return c.patchStatus(ctx, cluster, status)
}
