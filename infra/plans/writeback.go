package plans

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

// writeBack restores the specs of a rollback's objects before anything is applied, with the rights of the
// Apply's author. It first writes everything as a dry run: a missing right or a spec that the API now rejects
// ends the Apply before anything changes. Objects that changed since the plan are left alone, and their
// changes are rejected.
//
// It can be called again after a crash: objects that are already restored are not written twice.
func (r *reconciler) writeBack(ctx context.Context, a *v1alpha1.Apply, p *v1alpha1.Plan) (ended bool, err error) {
	client, err := r.impersonate(a.Spec.Author)
	if err != nil {
		return true, r.endApply(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf("No object was restored: %v.", err))
	}
	for _, dryRunPass := range []bool{true, false} {
		var refused error
		err := r.allChanges(ctx, p, func(c *change.Change) bool {
			if c.RestoreSpec == nil || c.Deferred != "" {
				return true
			}
			if refused = r.writeBackObject(ctx, client, p.Namespace, c, dryRunPass); refused != nil {
				refused = fmt.Errorf("%s: %w", c.Address, refused)
			}
			return refused == nil
		})
		if err != nil {
			return false, err
		}
		if refused == nil {
			continue
		}
		if !isPermanent(refused) {
			return false, refused
		}
		summary := "No object was restored"
		if !dryRunPass {
			summary = "Some objects were not restored, and nothing was applied"
		}
		return true, r.endApply(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf("%s. Objects are written with the rights of the Apply's author: %v.", summary, refused))
	}
	return false, nil
}

// isPermanent reports whether a retry would fail in the same way.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnauthorized(err)
}

// writeBackObject updates, creates or deletes the object of one change, if it is unchanged since the plan.
func (r *reconciler) writeBackObject(ctx context.Context, client dynamic.Interface, namespace string, c *change.Change, dryRunPass bool) error {
	served, err := r.kinds.Kind(refOf(c.Address))
	if err != nil {
		return nil // applying the change reports it
	}
	uid, generation, existed, err := infra.ObjectPrecondition(c)
	if err != nil {
		return err
	}
	api := client.Resource(schema.GroupVersionResource{Group: served.Group, Version: v1alpha1.ProvidersVersion, Resource: served.Plural}).Namespace(namespace)
	var dryRun []string
	if dryRunPass {
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
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) && dryRunPass {
			return nil
		}
		return err
	}
	if err := setSpec(live, c.RestoreSpec); err != nil {
		return err
	}
	// Update and do not merge: fields that were added since have to go.
	_, err = api.Update(ctx, live, metav1.UpdateOptions{FieldManager: rollbackManager, DryRun: dryRun})
	if apierrors.IsConflict(err) && dryRunPass {
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
