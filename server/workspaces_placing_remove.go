package server

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/dynamic"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/tenancy"
	"github.com/atoll-dev/atoll/tenancy/placing"
)

// removeInterval is how often the server looks whether the copies of a workspace that is being deleted are gone.
const removeInterval = time.Second

// removeCopies removes the copies of the objects of a workspace that is being deleted from its parent. No request changes the workspace any more, and its
// own objects are removed after that.
// Errors: *tenancy.Unready while some are left.
func (t *tenants) removeCopies(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) error {
	if w.Spec.Placement == nil {
		return nil
	}
	left, err := t.deleteCopies(ctx, path, w)
	if err != nil {
		return fmt.Errorf("remove the copies of its objects from the workspace above: %w", err)
	}
	if left == 0 {
		return nil
	}
	return &tenancy.Unready{Reason: tenancy.RemovingCopies, After: removeInterval, Message: fmt.Sprintf(
		"%d namespaces of the workspace above, with the copies of its objects, are being deleted: `kubectl get namespaces -l %s=%s` there lists them", left, tenancyv1alpha1.ChildUIDLabel, w.UID)}
}

func (t *tenants) deleteCopies(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) (left int, err error) {
	config := t.s.api.ClientConfig(placementUser)
	if above := tenancy.Parent(path); above != "" {
		in, open, release, err := t.tree.Acquire(ctx, above)
		if err != nil {
			return 0, err
		}
		defer release()
		if config, err = t.served.ClientConfigAs(open.Workspace, above, placementUser); err != nil {
			return 0, err
		}
		ctx = in
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	return placing.Remove(ctx, client, w.UID)
}
