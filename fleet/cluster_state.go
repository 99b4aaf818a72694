package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// RemoveClusterState removes a cluster's entry from a binding's status, for a cluster whose syncer
// no longer runs. It returns a conflict if the binding has changed.
func (s *Session) RemoveClusterState(ctx context.Context, b *v1alpha1.ResourceBinding, cluster string) error {
	i := slices.IndexFunc(b.Status.Clusters, func(c v1alpha1.ClusterState) bool { return c.Name == cluster })
	if i < 0 {
		return nil
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": b.UID},
		{"op": "test", "path": fmt.Sprintf("/status/clusters/%d/name", i), "value": cluster},
		{"op": "remove", "path": fmt.Sprintf("/status/clusters/%d", i)},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": b.ResourceVersion},
	})
	if err != nil {
		return err
	}
	_, err = s.BindingAPI(b.Namespace).
		Patch(ctx, b.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "atoll-fleet"}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the entry of cluster %s from binding %s/%s: %w", cluster, b.Namespace, b.Name, err)
	}
	return nil
}
