package server

import (
	"context"

	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// watchDue makes the requests to a workspace mark it as due when they leave something for controllers.
func (t *tenants) watchDue(open *tenant, uid, path string) {
	open.OnDue(func(ctx context.Context) error { return t.marker.Mark(ctx, tenancy.Controllers, path, uid) })
}

// finish runs the controllers of a workspace, as tenancy.ControllerConfig.Finish. They end with the workspace's other requests when
// it is being deleted.
func (t *tenants) finish(ctx context.Context, path string, observed tenancy.Observed) error {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return t.served.RunControllers(in, path, open.Workspace, func(p workspaces.Progress, current func() (workspaces.Progress, error)) bool {
		return observed(tenancy.Observation(p), func() (tenancy.Observation, error) {
			now, err := current()
			return tenancy.Observation(now), err
		})
	})
}
