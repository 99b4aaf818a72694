package workspaces

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/apiserver/merged"
)

// consumerScope is all consumers of an export that have one of its resources.
type consumerScope struct {
	*chain
	view     *view
	resource schema.GroupResource
}

var _ scope = consumerScope{}

func (s consumerScope) Name() string { return s.view.export + " " + s.resource.String() }

func (s consumerScope) Positions() *merged.Positions { return &s.view.exporter.positions }

func (consumerScope) Noun() string { return "a consumer of the APIExport" }

func (s consumerScope) Members(ctx context.Context) ([]merged.Ref, error) {
	return recordedConsumers(ctx, s.view.exporter, s.view.export)
}

func (s consumerScope) gone(ctx context.Context, of merged.Ref) {
	removeRecord(ctx, s.view.exporter, of)
}

func (s consumerScope) in(ctx context.Context, w *Workspace, _ merged.Ref, of *requestStore) (merged.Source, error) {
	consumes, err := s.consumes(ctx, s.view, w, s.resource)
	if err == nil && !consumes {
		err = ErrNotFound
	}
	if err != nil {
		return merged.Source{}, err
	}
	return sourceIn(w, of)
}

// Follow implements scope: the export or its consumers change.
func (s consumerScope) Follow(ctx context.Context) (<-chan struct{}, error) {
	return s.view.exporter.followAll(ctx, consumersOf(s.view.exporter, s.view.export), customKey(exportResource)+s.view.export)
}

// Refresh implements scope.
// Errors: 410 if the resource is not exported any more.
func (s consumerScope) Refresh(ctx context.Context) ([]merged.Ref, error) {
	exported, err := s.exported(ctx, s.view.exporter, s.view.export)
	if errors.Is(err, ErrNotFound) || err == nil && !exported.Has(s.resource) {
		return nil, merged.Expired("the resource is not exported any more")
	}
	if err != nil {
		return nil, err
	}
	return s.Members(ctx)
}

func (consumerScope) followIn(ctx context.Context, w *Workspace) (<-chan struct{}, error) {
	return w.follow(ctx, customKey(bindingResource))
}

func (consumerScope) below(context.Context, *Workspace, merged.Ref) ([]merged.Ref, error) {
	return nil, nil
}

// Waits implements scope: an APIBinding changes the entry of its workspace.
func (consumerScope) Waits() bool { return false }
