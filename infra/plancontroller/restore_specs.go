package plancontroller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/change"
)

// restoreSpecs restores the specs of a rollback's objects before anything is applied, with the rights of the
// Apply's author. It first writes everything as a dry run: a missing right or a spec that the API now rejects
// ends the Apply before anything changes. Objects that changed since the plan are left alone, and their
// changes are rejected.
//
// It can be called again after a crash: objects that are already restored are not written twice.
func (c *applyRunner) restoreSpecs(ctx context.Context, a *v1alpha1.Apply, p *v1alpha1.Plan) (ended bool, err error) {
	client, err := c.impersonate(a.Spec.Author)
	if err != nil {
		return true, c.status.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf("No object was restored: %v.", err))
	}
	for _, dryRunPass := range []bool{true, false} {
		var refused error
		err := allChanges(ctx, c.dynamic, p, func(one *change.Change) bool {
			if one.RestoreSpec == nil || one.Deferred != "" {
				return true
			}
			served, err := c.kinds.Kind(refOf(p.Namespace, one.Address))
			if err != nil {
				return true // applying the change reports it
			}
			if refused = apistore.RestoreSpec(ctx, client, served, p.Namespace, one, dryRunPass); refused != nil {
				refused = fmt.Errorf("%s: %w", one.Address, refused)
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
		return true, c.status.end(ctx, a, v1alpha1.ApplyFailed, v1alpha1.ReasonFailed, fmt.Sprintf("%s. Objects are written with the rights of the Apply's author: %v.", summary, refused))
	}
	return false, nil
}

// isPermanent reports whether a retry would fail in the same way.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnauthorized(err)
}
