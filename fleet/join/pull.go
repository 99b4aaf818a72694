package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Pull registers a cluster in mode Pull, or switches a registered cluster to that mode. The
// control plane never connects to it. adopt and acceptRights are those of Options.
func Pull(ctx context.Context, atoll *rest.Config, name string, adopt, acceptRights bool, progress func(string)) error {
	if err := checkClusterName(name); err != nil {
		return err
	}
	tell := progressReporter(progress)
	dyn, err := dynamic.NewForConfig(atoll)
	if err != nil {
		return fmt.Errorf("join %s: make a client of Atoll: %w", name, err)
	}
	if err := checkAtoll(ctx, atoll); err != nil {
		return fmt.Errorf("join %s: %w", name, err)
	}
	api := dyn.Resource(v1alpha1.ClusterResource)
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) && !acceptRights {
		kube, err := kubernetes.NewForConfig(atoll)
		if err != nil {
			return fmt.Errorf("join %s: make a client of Atoll: %w", name, err)
		}
		// Which cluster it is, is not known before its syncer runs.
		if err := checkRights(ctx, kube, name, ""); err != nil {
			return fmt.Errorf("join %s: %w", name, err)
		}
	}
	out, err := api.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": clusterMetadata(name, adopt),
		"spec":     map[string]any{"mode": string(v1alpha1.ModePull)},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if out, err = api.Get(ctx, name, metav1.GetOptions{}); err == nil {
			out, err = switchToPull(ctx, api, out, adopt, tell)
		}
	}
	if err != nil {
		return fmt.Errorf("join %s: register the cluster: %w", name, err)
	}
	if out.GetDeletionTimestamp() != nil {
		return fmt.Errorf("join %s: %w", name, errLeaving)
	}
	tell("%s is registered in mode %s", name, v1alpha1.ModePull)
	return nil
}

// errLeaving is returned when the name is taken by a cluster that is being removed.
var errLeaving = errors.New("a cluster of this name is still leaving: wait until it is gone (`kubectl get clusters`), or use another name")

func switchToPull(ctx context.Context, api dynamic.ResourceInterface, cluster *unstructured.Unstructured, adopt bool, tell func(string, ...any)) (*unstructured.Unstructured, error) {
	mode, _, _ := unstructured.NestedString(cluster.Object, "spec", "mode")
	if mode == string(v1alpha1.ModePull) && !adopt {
		return cluster, nil
	}
	metadata := clusterMetadata(cluster.GetName(), adopt)
	metadata["uid"] = cluster.GetUID()
	patch, err := json.Marshal(map[string]any{"metadata": metadata,
		"spec": map[string]any{"mode": v1alpha1.ModePull, "kubeconfigSecretRef": nil}})
	if err != nil {
		return nil, err
	}
	out, err := api.Patch(ctx, cluster.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil && mode != string(v1alpha1.ModePull) {
		where, _, _ := unstructured.NestedStringMap(cluster.Object, "spec", "kubeconfigSecretRef")
		tell("%s was in mode %s; Secret %s/%s still holds its kubeconfig: delete it if it is no longer needed", cluster.GetName(), v1alpha1.ModePush, where["namespace"], where["name"])
	}
	return out, err
}
