package join

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// LeaveOptions say which cluster leaves, and what happens to the objects in it.
type LeaveOptions struct {
	Name string
	// Cascade is v1alpha1.LeaveDelete (the default) or v1alpha1.LeaveOrphan.
	Cascade string
	// Progress, if set, is called with a sentence for each step.
	Progress func(string)
}

// Leave removes a cluster from the fleet and returns when it is gone. Its shares go to the other
// clusters. If ctx ends earlier, removal continues in the background, and Leave can be repeated.
func Leave(ctx context.Context, atoll *rest.Config, o LeaveOptions) error {
	if o.Cascade == "" {
		o.Cascade = v1alpha1.LeaveDelete
	}
	if o.Cascade != v1alpha1.LeaveDelete && o.Cascade != v1alpha1.LeaveOrphan {
		return fmt.Errorf("leave %s: cascade %q is neither %q nor %q", o.Name, o.Cascade, v1alpha1.LeaveDelete, v1alpha1.LeaveOrphan)
	}
	tell := progressReporter(o.Progress)
	dyn, err := dynamic.NewForConfig(atoll)
	if err != nil {
		return fmt.Errorf("leave %s: make a client of Atoll: %w", o.Name, err)
	}
	if err := checkAtoll(ctx, atoll); err != nil {
		return fmt.Errorf("leave %s: %w", o.Name, err)
	}
	api := dyn.Resource(v1alpha1.ClusterResource)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.LeaveAnnotation: o.Cascade}}})
	if err != nil {
		return err
	}
	cluster, err := api.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("leave %s: cluster not found: `kubectl get clusters` lists all clusters", o.Name)
	}
	if err != nil {
		return fmt.Errorf("leave %s: %w", o.Name, err)
	}
	uid := cluster.GetUID()
	if err := api.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("leave %s: %w", o.Name, err)
	}
	tell("%s is leaving; its shares go to other clusters", o.Name)
	why, answers := "the Atoll server has not started removing it yet", isReady(cluster)
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		u, err := api.Get(ctx, o.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && u.GetUID() != uid {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		var c v1alpha1.Cluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c); err != nil {
			return false, err
		}
		answers = isReady(u)
		if leaving := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterLeaving); leaving != nil {
			why = leaving.Message
			tell("%s: %s", o.Name, why)
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("cluster %s has not left yet (%s): %w", o.Name, why, err)
	}
	tell("%s has left", o.Name)
	if o.Cascade == v1alpha1.LeaveOrphan {
		tell("its objects stay there as ordinary ones, with the label %s=true", v1alpha1.ManagedLabel)
	}
	if !answers {
		tell(leftovers)
	}
	return nil
}

// leftovers is the remedy if Atoll could not remove the registration of its APIs from a cluster. An API
// without a server would keep every namespace in the cluster from being deleted.
const leftovers = "the cluster did not answer, so that Atoll's APIs are still registered there: when it is back, join it again, or run in it\n" +
	"  kubectl delete apiservices,clusterroles -l " + v1alpha1.ManagedByLabel + "=" + v1alpha1.ManagedByAtoll + "\n" +
	"Delete the namespaces with this label, too, if nothing else is in them"

func isReady(cluster *unstructured.Unstructured) bool {
	var c v1alpha1.Cluster
	return runtime.DefaultUnstructuredConverter.FromUnstructured(cluster.Object, &c) == nil && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady)
}
