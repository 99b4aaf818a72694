package server

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/tenancy"
)

// exports returns the resources of an APIExport of an open workspace.
func (t *tenants) exports(ctx context.Context, exporter *workspaces.Workspace, name string) ([]schema.GroupResource, error) {
	export, err := t.export(ctx, exporter, name)
	if err != nil {
		return nil, err
	}
	out := make([]schema.GroupResource, len(export.Spec.Resources))
	for i, r := range export.Spec.Resources {
		out[i] = schema.GroupResource{Group: r.Group, Resource: r.Resource}
	}
	return out, nil
}

// confirm reads from the API whether the workspace with that path and UID exists. One that is being deleted does not exist any more.
func (t *tenants) confirm(ctx context.Context, path, uid string) error {
	_, err := t.tree.Confirm(ctx, path, uid)
	if errors.Is(err, tenancy.ErrNotFound) {
		return workspaces.ErrNotFound
	}
	return err
}

// recordBindings records the workspace of a request with the exporters of its APIBindings, so that their views have it at once. What fails
// is repeated by the first request for a bound resource.
func (t *tenants) recordBindings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	consumer := workspaces.Of(ctx)
	stored, err := t.storedBindings(ctx, consumer)
	if err != nil {
		t.s.cfg.Log.Warn("read the bindings of a workspace failed", "workspace", workspaces.PathOf(ctx), "error", err)
		return
	}
	for _, b := range stored {
		groups := groupsOf(b.Spec.Resources)
		if len(groups) == 0 {
			continue
		}
		_, _, release, err := t.openExporter(ctx, consumer, b, groups[0])
		if err == nil {
			release()
		} else if !errors.Is(err, workspaces.ErrNotFound) {
			t.s.cfg.Log.Warn("record a binding with its exporter failed; the first request for its resources does it", "workspace", workspaces.PathOf(ctx), "binding", b.Name, "error", err)
		}
	}
}
