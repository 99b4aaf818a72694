package server

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// maxWorkspaceClusters is how many Clusters a workspace may have: the server probes and watches each of them.
const maxWorkspaceClusters = 100

// nestedFleetAdmission is fleetAdmission for workspaces. It refuses Clusters that Atoll cannot serve there, and marks the workspace before its first
// one is stored. Kinds that a workspace defines itself in the fleet's groups are not checked.
func (t *tenants) nestedFleetAdmission() []apiserver.AdmissionStep {
	return t.ifServed(v1alpha1.Group, append(fleetAdmission(), apiserver.AdmissionStep{Resource: v1alpha1.ClusterResource.GroupResource(), Check: t.checkCluster}))
}

// checkCluster refuses a Cluster that a workspace cannot have. Before the first one is stored, it marks the workspace, so that a server runs its fleet.
func (t *tenants) checkCluster(ctx context.Context, r *apiserver.AdmissionRequest) error {
	refuse := func(why string) error {
		return apierrors.NewForbidden(v1alpha1.ClusterResource.GroupResource(), r.Name, refusal(why))
	}
	if isPull(r.Object) && (r.Old == nil || !isPull(r.Old)) { // an update may remove the finalizers of one that a backup had
		return refuse("spec.mode: Pull is not available in a workspace: use Push with a kubeconfig in spec.kubeconfigSecretRef, or join the cluster in the root (-w root)")
	}
	if r.Old != nil {
		return nil
	}
	path, open := workspaces.PathOf(ctx), workspaces.Of(ctx)
	if path == "" {
		return refuse("the server itself creates no Clusters")
	}
	if err := t.checkOwnClusters(ctx, path); err != nil {
		if why, is := errors.AsType[refusal](err); is {
			return refuse(string(why))
		}
		return err
	}
	n, err := open.Count(ctx, v1alpha1.ClusterResource.GroupResource())
	if err == nil && n >= maxWorkspaceClusters {
		return refuse(fmt.Sprintf("a workspace has at most %d Clusters: delete one, or create another workspace", maxWorkspaceClusters))
	}
	if err == nil {
		err = t.directory.MarkFleet(ctx, path)
	}
	if err != nil {
		t.s.cfg.Log.Error("record that a workspace has Clusters failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable("it cannot be recorded now that the workspace has Clusters: retry")
	}
	return nil
}

func isPull(cluster *unstructured.Unstructured) bool {
	mode, _, _ := unstructured.NestedString(cluster.Object, "spec", "mode")
	return v1alpha1.ClusterMode(mode) == v1alpha1.ModePull
}

// checkFleetBelow refuses the deletion of a Workspace while it, or one in it, has Clusters: their objects would go on running in the members, and
// nothing in Atoll would know them any more. The same holds for the resources of Providers.
func (t *tenants) checkFleetBelow(ctx context.Context, r *apiserver.AdmissionRequest) error {
	if _, moves, _ := unstructured.NestedMap(r.Old.Object, "spec", "movedTo"); moves {
		return nil // its Clusters and resources are those of the destination, or it is served again
	}
	path := below(workspaces.PathOf(ctx), r.Name)
	with, err := t.firstWithClusters(ctx, path)
	if err != nil {
		t.s.cfg.Log.Error("look for Clusters in a workspace failed", "workspace", path, "error", err)
		return apierrors.NewServiceUnavailable(fmt.Sprintf("it cannot be read now whether workspace %s has Clusters: retry", path))
	}
	if with == "" {
		return t.checkResourcesBelow(ctx, r)
	}
	return forbidden(r, refusal(fmt.Sprintf("workspace %s has Clusters, in which its objects would go on running without Atoll: delete them first (`kubectl atoll -w %s get clusters`, and `kubectl delete cluster NAME` in that workspace)", with, with)))
}

// firstWithClusters returns the path of a workspace that has Clusters: of this one, or of one in it. It is "" if none has any. All that have some are
// marked in the Workspace of the root.
func (t *tenants) firstWithClusters(ctx context.Context, path string) (string, error) {
	marks, err := t.directory.ReadFleetMarks(ctx, path)
	if err != nil {
		return "", err
	}
	for _, marked := range marks {
		n, err := t.countClusters(ctx, marked)
		if err != nil {
			return "", fmt.Errorf("workspace %s: %w", marked, err)
		}
		if n > 0 {
			return marked, nil
		}
	}
	return "", nil
}

// countClusters returns how many Clusters a workspace has; 0 if it does not exist, or has the kind from elsewhere.
func (t *tenants) countClusters(ctx context.Context, path string) (int64, error) {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) || errors.Is(err, workspaces.ErrIncomplete) {
		return 0, nil // it is leaving already, or was never served
	}
	if err != nil {
		return 0, err
	}
	defer release()
	return t.clustersOf(in, open.Workspace)
}

// clustersOf returns how many Clusters an open workspace has that the server runs a fleet for.
func (t *tenants) clustersOf(ctx context.Context, open *workspaces.Workspace) (int64, error) {
	return t.countServed(ctx, open, v1alpha1.ClusterResource.GroupResource())
}

// controlled returns how many Clusters and Providers an open workspace has: the server runs controllers for them without any request.
func (t *tenants) controlled(ctx context.Context, open *workspaces.Workspace) (int64, error) {
	clusters, err := t.clustersOf(ctx, open)
	if err != nil {
		return 0, err
	}
	providers, err := t.providersOf(ctx, open)
	return clusters + providers, err
}

// markFleet marks a workspace that has Clusters or Providers and no mark: a copy, one that was restored, or one that has moved.
func (t *tenants) markFleet(ctx context.Context, open *tenant, path string) error {
	n, err := t.controlled(ctx, open.Workspace)
	if err != nil || n == 0 || t.directory.FleetMark(path) != "" {
		return err
	}
	err = t.directory.MarkFleet(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) {
		return nil // it is leaving: only the server opens it
	}
	return err
}
