package clusters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
func (c *controller) finalize(ctx context.Context, cluster *v1alpha1.Cluster, m *memberReconciler) error {
	_, orphan := cluster.Leaving()
	answers := meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.ClusterReady)
	bound := c.Bindings.On(cluster.Name)
	for _, b := range bound {
		_, chosen := b.Share(cluster.Name)
		if orphan && !answers && (!chosen || b.DeletionTimestamp != nil) {
			if err := c.RemoveClusterState(ctx, b, cluster.Name); err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	if len(bound) == 0 {
		if !slices.Contains(cluster.Finalizers, v1alpha1.ClusterFinalizer) {
			return nil
		}
		if answers && !orphan {
			if err := c.removeEmptyNamespaces(ctx, cluster, m); err != nil {
				condition := metav1.Condition{Type: v1alpha1.ClusterLeaving, Status: metav1.ConditionTrue, ObservedGeneration: cluster.Generation, Reason: v1alpha1.ReasonRemovingObjects,
					Message: fmt.Sprintf("the empty namespaces of the fleet are still in the cluster: %v; retrying, or leave them there with `atoll leave %s --cascade=orphan`", err, cluster.Name)}
				if cluster.InPullMode() {
					return c.writeLeaving(ctx, cluster, condition) // the next heartbeat causes another attempt
				}
				return errors.Join(err, c.writeLeaving(ctx, cluster, condition))
			}
		}
		if answers {
			if err := m.leave(ctx); err != nil {
				return err
			}
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
	return c.writeLeaving(ctx, cluster, leavingCondition(cluster, bound, answers))
}

// removeEmptyNamespaces removes the empty namespaces of the fleet from a cluster. In mode Pull, its syncer does that.
func (c *controller) removeEmptyNamespaces(ctx context.Context, cluster *v1alpha1.Cluster, m *memberReconciler) error {
	if cluster.InPullMode() {
		return c.pulledNamespaces(cluster)
	}
	return m.removeNamespaces(ctx)
}

// leavingCondition names the objects that are still bound to a leaving cluster, and the remedy: those that
// no other cluster has taken yet, or else those that the cluster still has to remove.
func leavingCondition(cluster *v1alpha1.Cluster, bound []*v1alpha1.ResourceBinding, answers bool) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ClusterLeaving, Status: metav1.ConditionTrue, ObservedGeneration: cluster.Generation}
	var placed []*v1alpha1.ResourceBinding
	for _, b := range bound {
		if _, chosen := b.Share(cluster.Name); chosen && b.DeletionTimestamp == nil {
			placed = append(placed, b)
		}
	}
	orphan := fmt.Sprintf("`atoll leave %s --cascade=orphan`", cluster.Name)
	switch {
	case !answers:
		condition.Reason = v1alpha1.ReasonWaitingForCluster
		condition.Message = fmt.Sprintf("%d objects may still be in the cluster, which does not answer (%s): bring it back, or leave them there with %s", len(bound), shown(bound), orphan)
	case len(placed) > 0:
		condition.Reason = v1alpha1.ReasonRemovingObjects
		condition.Message = fmt.Sprintf("%d objects are still bound to the cluster; of these, %d have not moved to another cluster yet (%s). If that does not change, no other cluster takes them: "+
			"allow more clusters in their policies, delete the objects, or leave them there with %s", len(bound), len(placed), shown(placed), orphan)
	default:
		condition.Reason = v1alpha1.ReasonRemovingObjects
		condition.Message = fmt.Sprintf("%d objects are still being removed from the cluster (%s)", len(bound), shown(bound))
	}
	return condition
}

// shown lists the first objects of bindings.
func shown(bindings []*v1alpha1.ResourceBinding) string {
	const most = 5
	names := make([]string, len(bindings))
	for i, b := range bindings {
		name := b.Spec.Resource.Name
		if b.Namespace != "" {
			name = b.Namespace + "/" + name
		}
		names[i] = b.Spec.Resource.Kind + " " + name
	}
	slices.Sort(names)
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (c *controller) writeLeaving(ctx context.Context, cluster *v1alpha1.Cluster, condition metav1.Condition) error {
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
