// Package merged serves lists and watches of one resource over the storages of many workspaces as if they were one storage. It knows nothing of
// how a workspace is found, opened or authorized: that is up to a Scope.
//
// Each keyspace has revisions of its own, so the resourceVersion of such a list or watch is the number of a position: a revision for each
// workspace, which the server remembers for a while.
package merged

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// OpenedAtOnce is how many workspaces a list opens at the same time.
	OpenedAtOnce = 8
	// MaxWorkspaces bounds the workspaces of one list or watch.
	MaxWorkspaces = 2000
)

// ErrAbsent is the error for a workspace that is gone for good, or does not have the resource now.
var ErrAbsent = errors.New("the workspace does not have the resource")

// Ref names a workspace that may have objects of a list or watch.
type Ref struct {
	UID, Path string
	// Key is that of the object which names it, and Revision its revision: a change of it can mean that the workspace has the resource now.
	Key      string
	Revision int64
}

// Scope decides which workspaces a list or watch is over, and opens them.
type Scope interface {
	// Name is what the positions belong to; they are those of Positions.
	Name() string
	Positions() *Positions
	// Noun is a workspace of the scope, in messages.
	Noun() string

	// Members returns the workspaces that may have objects now.
	// Errors: those of the API if they are too many.
	Members(ctx context.Context) ([]Ref, error)
	// Follow returns a channel that receives when Refresh may return something else. It is closed when changes are unknown from now on.
	Follow(ctx context.Context) (<-chan struct{}, error)
	// Refresh returns the workspaces that the scope itself knows of now. Members know of others: see Workspace.
	Refresh(ctx context.Context) ([]Ref, error)
	// Enter opens a workspace until release is called. The returned context ends with the workspace.
	// Errors: ErrAbsent.
	Enter(ctx context.Context, ref Ref) (in context.Context, w Workspace, release func(), err error)
	// Waits reports whether a watch stays in a workspace that does not have the resource, because only changes within say that it does.
	Waits() bool
}

// Workspace is an open workspace of a scope.
type Workspace interface {
	// Source returns where it has the objects of the resource. The caller releases it.
	// Errors: ErrAbsent.
	Source(ctx context.Context) (Source, error)
	// Follow returns a channel that receives when Source or Below may return something else. It is closed when changes are unknown from now on.
	Follow(ctx context.Context) (<-chan struct{}, error)
	// Below returns the workspaces of the scope that this one names.
	Below(ctx context.Context) ([]Ref, error)
}

// Source is where one workspace has the objects of the resource.
type Source struct {
	// Interface is the storage in this workspace. Its watches send bookmarks with the revision of the keyspace.
	storage.Interface
	// NewList returns an empty list of its objects.
	NewList func() runtime.Object
	// Selection, if set, has the selectors of the request as the definition of this workspace understands them.
	Selection *storage.SelectionPredicate
	// Life ends when objects are decoded by another definition than that of this source. Identity differs then, too.
	Life     context.Context
	Identity any
	// Release ends the use of the workspace that has the storage.
	Release func()
}

// options are those of a request for this source.
func (s Source) options(opts storage.ListOptions) storage.ListOptions {
	if s.Selection != nil {
		opts.Predicate.Label, opts.Predicate.Field, opts.Predicate.GetAttrs = s.Selection.Label, s.Selection.Field, s.Selection.GetAttrs
	}
	return opts
}

// Request is a list or watch of a resource over the workspaces of a scope.
type Request struct {
	Scope
	Resource schema.GroupResource
	// NewObject returns an empty object of the resource.
	NewObject func() runtime.Object
	// Life ends the watch.
	Life context.Context
	Log  *slog.Logger
}

// within calls f with the source of a workspace.
// Errors: ErrAbsent.
func (r Request) within(ctx context.Context, ref Ref, f func(context.Context, Source) error) error {
	in, w, release, err := r.Enter(ctx, ref)
	if err != nil {
		return err
	}
	defer release()
	from, err := w.Source(in)
	if err != nil {
		return err
	}
	defer from.Release()
	return f(in, from)
}

// explained returns the error that a client gets. The log has the cause of one that is not about its request: it may be about the database.
func (r Request) explained(err error) error {
	var status apierrors.APIStatus
	var stored *storage.StorageError
	if err == nil || errors.As(err, &status) || errors.As(err, &stored) || errors.Is(err, context.Canceled) {
		return err
	}
	r.Log.Error("read many workspaces failed", "scope", r.Name(), "resource", r.Resource.String(), "error", err)
	return r.unreadable()
}

func (r Request) unreadable() *apierrors.StatusError {
	return apierrors.NewServiceUnavailable(r.Noun() + " cannot be read now: retry")
}

// Expired is the error for a resourceVersion that cannot be continued: clients list again.
func Expired(why string) error {
	return apierrors.NewResourceExpired(why + ": list again")
}

// lost is the error for a workspace whose objects a client has seen.
func lost() error { return Expired("a workspace is gone, or does not have the resource any more") }

// TooMany is the error for a list or watch over more than MaxWorkspaces.
func TooMany(what, remedy string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s are more than %d workspaces: %s", what, MaxWorkspaces, remedy))
}
