package server

import (
	"context"
	"strconv"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
)

// rootOf is the root as the server of workspaces needs it to serve all workspaces below it.
func (t *tenants) rootOf(root apiserver.ForWorkspaces) *workspaces.Root {
	return &workspaces.Root{Authenticator: root.Authenticator, Authorizer: root.Authorizer, Workspaces: t.rootWorkspaces,
		Follow: func(ctx context.Context) <-chan struct{} { return t.directory.Follow(ctx) }}
}

// rootWorkspaces returns the Workspaces of the root that are not being deleted, and do not move.
func (t *tenants) rootWorkspaces(ctx context.Context) ([]workspaces.Child, error) {
	all, err := t.directory.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []workspaces.Child
	for _, w := range all {
		if w.DeletionTimestamp != nil || w.Spec.MovedTo != nil {
			continue
		}
		revision, err := strconv.ParseInt(w.ResourceVersion, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, workspaces.Child{Name: w.Name, UID: string(w.UID), Revision: revision})
	}
	return out, nil
}
