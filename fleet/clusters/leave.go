package clusters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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
		if err := c.recordLeft(ctx, cluster); err != nil {
			return err
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

// maxLeft is how many clusters that left are recorded.
const maxLeft = 5000

// recordLeft records which cluster had the name. `atoll join` of another one under it reports the rights that the users of
// this one still have.
func (c *controller) recordLeft(ctx context.Context, cluster *v1alpha1.Cluster) error {
	if cluster.Status.ID == "" {
		return nil
	}
	api := c.Kube.CoreV1().ConfigMaps(v1alpha1.SystemNamespace)
	left, err := api.Get(ctx, v1alpha1.LeftClusters, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.LeftClusters, Namespace: v1alpha1.SystemNamespace},
			Data: map[string]string{cluster.Name: cluster.Status.ID}}, metav1.CreateOptions{FieldManager: FieldManager})
	} else if err == nil && left.Data[cluster.Name] != cluster.Status.ID {
		if left.Data == nil {
			left.Data = map[string]string{}
		}
		for name := range left.Data {
			if len(left.Data) < maxLeft {
				break
			}
			delete(left.Data, name)
		}
		left.Data[cluster.Name] = cluster.Status.ID
		_, err = api.Update(ctx, left, metav1.UpdateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		return fmt.Errorf("record the cluster that leaves in ConfigMap %s/%s: %w", v1alpha1.SystemNamespace, v1alpha1.LeftClusters, err)
	}
	return nil
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
