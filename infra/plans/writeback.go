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
	"github.com/atoll-dev/atoll/infra/plan"
)

// rollbackManager owns in objects what a rollback has written back.
const rollbackManager = "atoll-rollback"

// writeBack writes the objects of a rollback as they were, before anything is carried out, with the rights of who asked for the
// Apply. All of it is tried first without writing: what the user may not write, or the API refuses by now, ends
// the Apply before anything is done. Objects that moved since the plan are left alone, and their changes refused.
//
// It can be called again after a crash: what is written is not written again.
func (d *desk) writeBack(ctx context.Context, a *v1alpha1.Apply, p *v1alpha1.Plan) (ended bool, err error) {
	client, err := d.as(a.Spec.Author)
	if err != nil {
		return true, d.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf("Nothing could be written back: %v.", err))
	}
	for _, dry := range []bool{true, false} {
		var refused error
		err := d.allChanges(ctx, p, func(c *plan.Change) bool {
			if c.RestoreSpec == nil || c.Deferred != "" {
				return true
			}
			if refused = d.writeOne(ctx, client, p.Namespace, c, dry); refused != nil {
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
		if !final(refused) {
			return false, refused
		}
		said := "Nothing was written back"
		if !dry {
			said = "Not all was written back, and nothing was carried out"
		}
		return true, d.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf("%s, which is done with the rights of who asked for this: %v.", said, refused))
	}
	return false, nil
}

// final tells whether the API would refuse the same again.
func final(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnauthorized(err)
}

// writeOne writes, makes or deletes the object of one change, if it is as it was when that was planned.
func (d *desk) writeOne(ctx context.Context, client dynamic.Interface, namespace string, c *plan.Change, dry bool) error {
	served, err := d.kinds.Kind(refOf(c.Address))
	if err != nil {
		return nil // the change will say so
	}
	uid, generation, there, err := infra.ObjectPrecondition(c)
	if err != nil {
		return err
	}
	api := client.Resource(schema.GroupVersionResource{Group: served.Group, Version: v1alpha1.ProvidersVersion, Resource: served.Plural}).Namespace(namespace)
	var dryRun []string
	if dry {
		dryRun = []string{metav1.DryRunAll}
	}
	if !there {
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
			return nil // made by an earlier attempt, or by somebody else, which its generation or the decision shows
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
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) && dry {
			return nil
		}
		return err
	}
	if err := setSpec(live, c.RestoreSpec); err != nil {
		return err
	}
	// Whole, and not merged into what is there: what was added since has to go.
	_, err = api.Update(ctx, live, metav1.UpdateOptions{FieldManager: rollbackManager, DryRun: dryRun})
	if apierrors.IsConflict(err) && dry {
		return nil
	}
	return err
}

func setSpec(u *unstructured.Unstructured, spec json.RawMessage) error {
	text := append(append([]byte(`{"apiVersion":"v1","kind":"Any","spec":`), spec...), '}')
	read := &unstructured.Unstructured{}
	if err := read.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("what was written then cannot be read: %w", err)
	}
	u.Object["spec"] = read.Object["spec"]
	return nil
}
