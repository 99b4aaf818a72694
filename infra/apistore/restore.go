package apistore

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
)

// rollbackManager is the field manager of specs that a rollback writes back.
const rollbackManager = "atoll-rollback"

// RestoreSpec updates, creates or deletes the object of a change so that it has the spec of the change's
// RestoreSpec. It leaves the object alone if that has changed since the plan. The error of a request is that of
// the API.
func RestoreSpec(ctx context.Context, client dynamic.Interface, served *infra.ServedKind, namespace string, c *change.Change, dryRunOnly bool) error {
	uid, generation, existed, err := infra.ObjectPrecondition(c)
	if err != nil {
		return err
	}
	api := client.Resource(schema.GroupVersionResource{Group: served.Group, Version: v1alpha1.ProvidersVersion, Resource: served.Plural}).Namespace(namespace)
	var dryRun []string
	if dryRunOnly {
		dryRun = []string{metav1.DryRunAll}
	}
	if !existed {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetAPIVersion(served.Group + "/" + v1alpha1.ProvidersVersion)
		u.SetKind(served.Name.Kind)
		u.SetName(c.Address.Name)
		u.SetNamespace(namespace)
		if err := setSpec(u, c.RestoreSpec); err != nil {
			return err
		}
		_, err := api.Create(ctx, u, metav1.CreateOptions{FieldManager: rollbackManager, DryRun: dryRun})
		if apierrors.IsAlreadyExists(err) {
			return nil // created by an earlier attempt; or by another client, which the preconditions detect
		}
		return err
	}
	live, err := api.Get(ctx, c.Address.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case string(live.GetUID()) != uid || live.GetGeneration() != generation || live.GetDeletionTimestamp() != nil:
		return nil
	}
	version := live.GetResourceVersion()
	if string(c.RestoreSpec) == "null" {
		id := types.UID(uid)
		err := api.Delete(ctx, c.Address.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &id, ResourceVersion: &version}, DryRun: dryRun})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) && dryRunOnly {
			return nil
		}
		return err
	}
	if err := setSpec(live, c.RestoreSpec); err != nil {
		return err
	}
	// Update and do not merge: fields that were added since have to go.
	_, err = api.Update(ctx, live, metav1.UpdateOptions{FieldManager: rollbackManager, DryRun: dryRun})
	if apierrors.IsConflict(err) && dryRunOnly {
		return nil
	}
	return err
}

func setSpec(u *unstructured.Unstructured, spec json.RawMessage) error {
	text := append(append([]byte(`{"apiVersion":"v1","kind":"Any","spec":`), spec...), '}')
	read := &unstructured.Unstructured{}
	if err := read.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("decode the recorded spec: %w", err)
	}
	u.Object["spec"] = read.Object["spec"]
	return nil
}
