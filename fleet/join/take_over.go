package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// TakeOverOptions say which clusters this control plane takes over from another one.
type TakeOverOptions struct {
	// Names of the clusters; none means all that belong to another control plane.
	Names []string
	// Preview reports what would be done, and changes nothing.
	Preview bool
	// InWorkspace is set if the control plane is a workspace. It does not say which one it is, so only clusters that it has probed are known to
	// belong to another one.
	InWorkspace bool
	// Report is called with each cluster and the control plane that it belongs to now.
	Report func(cluster string, from *v1alpha1.ClusterClaim)
}

// TakeOver makes this control plane replace the ones that clusters belong to.
func TakeOver(ctx context.Context, cfg *rest.Config, o TakeOverOptions) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client of the control plane: %w", err)
	}
	if err := checkAtoll(ctx, cfg); err != nil {
		return err
	}
	api := client.Resource(v1alpha1.ClusterResource)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the clusters: %w", err)
	}
	var clusters v1alpha1.ClusterList
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.UnstructuredContent(), &clusters); err != nil {
		return fmt.Errorf("read the clusters: %w", err)
	}
	var own fleet.ControlPlane
	if !o.InWorkspace {
		if own, err = controlPlane(ctx, cfg); err != nil {
			return err
		}
	}
	chosen, err := toTakeOver(own, clusters.Items, o.Names)
	if err != nil {
		return err
	}
	for _, c := range chosen {
		if !o.Preview {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.UID,
				"annotations": map[string]any{v1alpha1.TakeOverAnnotation: c.Status.Claim.Holder}}})
			if err != nil {
				return err
			}
			if _, err := api.Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "atoll-cli"}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("take over cluster %s: %w", c.Name, err)
			}
		}
		o.Report(c.Name, c.Status.Claim)
	}
	return nil
}

// controlPlane asks the server which control plane it belongs to.
func controlPlane(ctx context.Context, cfg *rest.Config) (own fleet.ControlPlane, err error) {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return own, fmt.Errorf("make a client of the control plane: %w", err)
	}
	answer, err := client.RESTClient().Get().AbsPath(v1alpha1.ControlPlanePath).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return own, errors.New("the server does not say which control plane it is: it runs with --read-only, or is older than this program")
	}
	if err != nil {
		return own, fmt.Errorf("ask the server which control plane it is: %w", err)
	}
	var claim v1alpha1.ClusterClaim
	if err := json.Unmarshal(answer, &claim); err != nil {
		return own, fmt.Errorf("read which control plane the server is: %w", err)
	}
	return fleet.ControlPlaneOf(&claim), nil
}

// toTakeOver returns the named clusters, or all, that belong to another control plane than this one. The
// status of a Cluster may still be the one that the other wrote: the data was copied, and this control plane has
// not probed the cluster yet. So the recorded claim decides too, not only the condition, unless own is unknown.
func toTakeOver(own fleet.ControlPlane, clusters []v1alpha1.Cluster, names []string) (chosen []v1alpha1.Cluster, err error) {
	var problems []error
	for _, name := range names {
		if !slices.ContainsFunc(clusters, func(c v1alpha1.Cluster) bool { return c.Name == name }) {
			problems = append(problems, fmt.Errorf("cluster %s not found: `kubectl get clusters` lists all clusters", name))
		}
	}
	for _, c := range clusters {
		if len(names) > 0 && !slices.Contains(names, c.Name) {
			continue
		}
		ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
		switch {
		case c.Status.Claim != nil && (ready != nil && ready.Reason == v1alpha1.ReasonOtherControlPlane || own.ID != "" && fleet.ControlPlaneOf(c.Status.Claim).ID != own.ID):
			chosen = append(chosen, c)
		case len(names) > 0:
			state := "it has not been probed"
			if ready != nil {
				state = fmt.Sprintf("its condition Ready is %s, reason %s", strings.ToLower(string(ready.Status)), ready.Reason)
			}
			problems = append(problems, fmt.Errorf("cluster %s belongs to no other control plane, as far as this one knows: %s", c.Name, state))
		}
	}
	return chosen, errors.Join(problems...)
}
