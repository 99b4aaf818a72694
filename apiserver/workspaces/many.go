package workspaces

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/atoll-dev/atoll/apiserver/merged"
)

// scope decides which workspaces a list or watch is over, and where their objects are: all consumers of an export (consumerScope), or all
// workspaces below another one (treeScope). Its exported methods are those of merged.Scope.
type scope interface {
	Name() string
	Positions() *merged.Positions
	Noun() string
	Members(ctx context.Context) ([]merged.Ref, error)
	Follow(ctx context.Context) (<-chan struct{}, error)
	Refresh(ctx context.Context) ([]merged.Ref, error)
	Waits() bool

	// gone is called for a workspace that is known to be gone for good.
	gone(ctx context.Context, of merged.Ref)
	// in returns where an open workspace has the objects of the resource. s is the storage that the request has reached.
	// Errors: ErrNotFound if it does not have the resource now.
	in(ctx context.Context, w *Workspace, of merged.Ref, s *requestStore) (merged.Source, error)
	// followIn and below are Follow and Below of merged.Workspace.
	followIn(ctx context.Context, w *Workspace) (<-chan struct{}, error)
	below(ctx context.Context, w *Workspace, of merged.Ref) ([]merged.Ref, error)
}

// sourceIn returns the source of a storage that all workspaces of a scope share.
func sourceIn(w *Workspace, s *requestStore) (merged.Source, error) {
	store, err := w.store(s)
	return merged.Source{Interface: withBookmarks{store}, NewList: s.newList, Life: s.life, Identity: s, Release: func() {}}, err
}

// withBookmarks is the storage of one workspace, whose watches send bookmarks.
type withBookmarks struct{ storage.Interface }

// Watch implements storage.Interface.
func (s withBookmarks) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return watchIn(ctx, s.Interface, key, opts)
}

// manyWorkspaces is in the context of a request over many workspaces. The context has no workspace: only the storage of the
// resource knows what to do with it.
type manyWorkspaces struct {
	*chain
	scope
	// resource is that of the storage.
	resource schema.GroupResource
}

type allKey struct{}

func allOf(ctx context.Context) *manyWorkspaces {
	a, _ := ctx.Value(allKey{}).(*manyWorkspaces)
	return a
}

// over returns the context of a request over many workspaces.
func (c *chain) over(ctx context.Context, of scope, resource schema.GroupResource) context.Context {
	return context.WithValue(withWorkspace(ctx, nil, ""), allKey{}, &manyWorkspaces{c, of, resource})
}

// enter opens a workspace of a scope.
// Errors: ErrNotFound if it is gone for good, or is a copy that is not complete, which no client has seen.
func (c *chain) enter(ctx context.Context, of scope, ref merged.Ref) (context.Context, *Workspace, func(), error) {
	in, w, release, err := c.open(ctx, ref.Path)
	if err == nil && w.uid == ref.UID {
		return withWorkspace(in, nil, ""), w, release, nil
	}
	if err == nil {
		release()
		err = ErrNotFound
	}
	if errors.Is(err, ErrIncomplete) {
		return nil, nil, nil, ErrNotFound
	}
	if !errors.Is(err, ErrNotFound) {
		return nil, nil, nil, fmt.Errorf("open workspace %s: %w", ref.Path, err)
	}
	// Not to be found is not to be gone: another server may have created it a moment ago.
	err = c.confirm(ctx, ref.Path, ref.UID)
	if err == nil {
		return nil, nil, nil, fmt.Errorf("workspace %s is not known yet", ref.Path)
	}
	if errors.Is(err, ErrNotFound) {
		of.gone(ctx, ref)
	}
	return nil, nil, nil, err
}

// at returns the request as the storage that it has reached serves it.
func (a *manyWorkspaces) at(s *requestStore) merged.Request {
	return merged.Request{Scope: reached{a, s}, Resource: a.resource, NewObject: s.newObject, Life: s.life, Log: a.log}
}

// reached is a scope whose request has reached the storage of the resource.
type reached struct {
	*manyWorkspaces
	store *requestStore
}

var _ merged.Scope = reached{}

// Enter implements merged.Scope.
func (s reached) Enter(ctx context.Context, ref merged.Ref) (context.Context, merged.Workspace, func(), error) {
	in, w, release, err := s.enter(ctx, s.scope, ref)
	return in, entered{s, w, ref}, release, absent(err)
}

// entered is an open workspace of a scope.
type entered struct {
	reached
	w   *Workspace
	ref merged.Ref
}

// Source implements merged.Workspace.
func (e entered) Source(ctx context.Context) (merged.Source, error) {
	from, err := e.in(ctx, e.w, e.ref, e.store)
	return from, absent(err)
}

// Follow implements merged.Workspace.
func (e entered) Follow(ctx context.Context) (<-chan struct{}, error) { return e.followIn(ctx, e.w) }

// Below implements merged.Workspace.
func (e entered) Below(ctx context.Context) ([]merged.Ref, error) { return e.below(ctx, e.w, e.ref) }

// absent makes ErrNotFound the error of merged that says the same.
func absent(err error) error {
	if errors.Is(err, ErrNotFound) {
		return merged.ErrAbsent
	}
	return err
}
