package tenancy

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
)

// ReportUsage writes the usage of a workspace into its status, unless it is there already. A workspace that is gone has none.
func ReportUsage(ctx context.Context, client dynamic.Interface, w *v1alpha1.Workspace, used kv.Usage, definitions, expressions int64) error {
	usage := &v1alpha1.WorkspaceUsage{Objects: used.Keys, Bytes: *resource.NewQuantity(used.Bytes, resource.BinarySI), Workspaces: used.Units,
		Definitions: definitions, Expressions: expressions}
	if w.DeletionTimestamp != nil || equality.Semantic.DeepEqual(usage, w.Status.Usage) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.UID}, "status": map[string]any{"usage": usage}})
	if err != nil {
		return err
	}
	_, err = client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, w.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the usage of workspace %s: %w", w.Name, err)
	}
	return nil
}
