package server

import (
	"context"
	"errors"
	"fmt"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

// remove ends the requests of a workspace, removes those in it, drops its keyspace, and removes the rows.
// Errors: *tenancy.Unready.
func (t *tenants) remove(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) error {
	return t.removeIn(ctx, path, w, false)
}

// removeIn is remove for a workspace in another one that is being removed, if above is set.
func (t *tenants) removeIn(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, above bool) error {
	ctx, end, err := t.endMove(ctx, path, w, above)
	if err != nil {
		return err
	}
	defer end()
	t.copies.end(string(w.UID))
	t.end(ctx, path, w)
	if !above { // otherwise they go with the workspace above
		if err := t.removeCopies(ctx, path, w); err != nil {
			return err
		}
	}
	if err := t.removeChildren(ctx, path, w); err != nil {
		return err
	}
	return t.drop(ctx, string(w.UID))
}

// drop drops the keyspace of a workspace, and removes the rows.
func (t *tenants) drop(ctx context.Context, uid string) error {
	drops, ok := t.s.datastore.Backend.(kv.Dropper)
	if !ok {
		return fmt.Errorf("the datastore %s cannot drop keyspaces", t.s.datastore.URL())
	}
	err := drops.Drop(ctx, keyspaceOf(uid))
	if err == nil { // otherwise the keyspace may have moved to another Workspace, whose directory it is
		err = t.infra.dirs.removeOfWorkspace(uid)
	}
	if err != nil && !errors.Is(err, kv.ErrKeyNotFound) {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = drops.Purge(ctx, purgeRows); err != nil {
			return err
		}
	}
	return nil
}

// end ends the requests to a workspace on this server. One that does not end fails when its keyspace is dropped.
func (t *tenants) end(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) {
	ctx, cancel := context.WithTimeout(ctx, workspaceEndTimeout)
	defer cancel()
	if err := t.pool.End(ctx, tenancy.Key(string(w.UID), path)); err != nil {
		t.s.cfg.Log.Warn("requests to a deleted workspace are still running", "workspace", path, "error", err)
	}
}
