package join

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// AllowDeletions suspends the deletion limit of a Cluster's syncer until the given time.
func AllowDeletions(ctx context.Context, cfg *rest.Config, cluster string, until time.Time) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client of the control plane: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{v1alpha1.AllowDeletionsAnnotation: until.UTC().Format(time.RFC3339)}}})
	if err != nil {
		return err
	}
	_, err = client.Resource(v1alpha1.ClusterResource).Patch(ctx, cluster, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "atoll-cli"})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("cluster %s not found: `kubectl get clusters` lists all clusters", cluster)
	}
	if err != nil {
		return fmt.Errorf("allow deletions in cluster %s: %w", cluster, err)
	}
	return nil
}
