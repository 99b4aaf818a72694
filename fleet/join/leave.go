package join

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	if was, err := api.Get(ctx, o.Name, metav1.GetOptions{}); err == nil && was.GetDeletionTimestamp() == nil && o.Cascade == v1alpha1.LeaveDelete {
		if err := checkSuspended(ctx, dyn, o.Name); err != nil {
			return fmt.Errorf("leave %s: %w", o.Name, err)
		}
	}
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
	why := "the Atoll server has not started removing it yet"
	var last v1alpha1.Cluster
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(cluster.Object, &last) // otherwise nothing is known about it
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
		last = c
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
	for _, text := range leftovers(&last, o.Cascade) {
		tell("%s", text)
	}
	return nil
}

// leftovers says what a cluster still has after it has left, from the last known state of the Cluster.
func leftovers(last *v1alpha1.Cluster, cascade string) (texts []string) {
	ready := meta.FindStatusCondition(last.Status.Conditions, v1alpha1.ClusterReady)
	if ready != nil && ready.Reason == v1alpha1.ReasonOtherControlPlane {
		return []string{"it belongs to another control plane: nothing was changed there"}
	}
	if cascade == v1alpha1.LeaveOrphan {
		texts = append(texts, fmt.Sprintf("its objects stay there as ordinary ones, with the label %s=true", v1alpha1.ManagedLabel))
	}
	switch {
	case last.InPullMode():
		texts = append(texts, "its syncer is not needed any more. If it runs there, delete it with\n"+
			"  kubectl delete namespace "+v1alpha1.SystemNamespace+"\n"+
			"  kubectl delete clusterrolebinding atoll-syncer\n"+deleteClaim)
	case ready == nil || ready.Status != metav1.ConditionTrue:
		// An API without a server would keep every namespace in the cluster from being deleted.
		texts = append(texts, "the cluster did not answer, so that Atoll's APIs are still registered there: when it is back, join it again, or run in it\n"+
			"  kubectl delete apiservices,clusterroles -l "+v1alpha1.ManagedByLabel+"="+v1alpha1.ManagedByAtoll+"\n"+deleteClaim+"\n"+
			"Delete the namespaces with this label, too, if nothing else is in them")
	}
	return texts
}

const deleteClaim = "  kubectl delete lease " + v1alpha1.ClaimLease + " -n " + metav1.NamespaceSystem + " --ignore-not-found"
