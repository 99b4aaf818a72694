package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/clusters"
	"github.com/atoll-dev/atoll/tenancy"
)

// reasonFleetLimit is the reason of the condition Ready of Clusters whose workspace waits for its fleet.
const reasonFleetLimit = "FleetLimit"

// fleetWaitPeriod is how long Clusters are looked for: the mark is older than the Cluster of its request, which takes a minute at most.
const fleetWaitPeriod = time.Minute

// fleetWaits tells the users of a workspace that its fleet waits, until ctx ends. A failure is only logged: the log names the workspace too.
func (t *tenants) fleetWaits(ctx context.Context, path string) {
	t.s.cfg.Log.Warn("the fleet of a workspace waits, because as many run as possible", "workspace", path, "limit", t.fleets.max)
	for pause, waited := time.Second, time.Duration(0); ; pause, waited = 2*pause, waited+pause {
		err := t.writeFleetWaits(ctx, path)
		if ctx.Err() != nil || errors.Is(err, tenancy.ErrNotFound) {
			return
		}
		if err != nil {
			t.s.cfg.Log.Warn("report that a fleet waits failed", "workspace", path, "error", err)
		}
		if waited >= fleetWaitPeriod {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.s.cfg.Clock.After(pause):
		}
	}
}

// writeFleetWaits writes the condition of all Clusters of a workspace that lack it.
func (t *tenants) writeFleetWaits(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, fleetWaitPeriod)
	defer cancel()
	in, open, release, err := t.tree.Acquire(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	if has, err := t.hasFleet(in, open.Workspace); err != nil || !has[v1alpha1.Group] {
		return err
	}
	config, err := t.served.ClientConfigAs(open.Workspace, path, fleetUser)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	list, err := client.Resource(v1alpha1.ClusterResource).List(in, metav1.ListOptions{Limit: maxWorkspaceClusters})
	if err != nil {
		return err
	}
	waits := controllers.Condition(v1alpha1.ClusterReady, false, reasonFleetLimit, fmt.Sprintf(
		"the server runs the fleets of %d workspaces, which is the limit, and this one waits: nothing is written to the cluster until another workspace has no Clusters any more. "+
			"Delete the Clusters of another workspace, or join the cluster in the root (-w root)", t.fleets.max))
	var failed []error
	for i := range list.Items {
		if err := writeReady(in, client, &list.Items[i], waits, metav1.NewTime(t.s.cfg.Clock.Now())); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// writeReady writes a condition of a Cluster that lacks it.
func writeReady(ctx context.Context, client dynamic.Interface, item *unstructured.Unstructured, condition metav1.Condition, now metav1.Time) error {
	cluster := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, cluster); err != nil {
		return err
	}
	condition.LastTransitionTime, condition.ObservedGeneration = now, cluster.Generation
	if !meta.SetStatusCondition(&cluster.Status.Conditions, condition) {
		return nil
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&cluster.Status)
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedMap(item.Object, status, "status"); err != nil {
		return err
	}
	_, err = client.Resource(v1alpha1.ClusterResource).UpdateStatus(ctx, item, metav1.UpdateOptions{FieldManager: clusters.FieldManager})
	return err
}
