package tenancy

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"golang.org/x/time/rate"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// ErrNotFound is returned if there is no workspace of that name, or if it is leaving.
var ErrNotFound = errors.New("workspace not found")

// IsLeaving reports whether a workspace is not served any more, because it is being deleted, or moves to another path.
func IsLeaving(w *v1alpha1.Workspace) bool {
	return w.DeletionTimestamp != nil || w.Spec.MovedTo != nil
}

// Directory knows the workspaces of the root from a watch.
type Directory struct {
	client dynamic.Interface
	cache  controllers.Cache[v1alpha1.Workspace]
	// reads bounds the reads of names that the cache does not have: any client that reaches the server can ask for any name.
	reads     *rate.Limiter
	followers followers
}

const (
	readsPerSecond = 100
	readBurst      = 200
)

const indexByUID, indexBySource = "uid", "source"

// NewDirectory returns a directory. The caller runs it.
func NewDirectory(client dynamic.Interface) *Directory {
	byUID := func(obj any) ([]string, error) {
		if w, ok := obj.(*v1alpha1.Workspace); ok {
			return []string{string(w.UID)}, nil
		}
		return nil, nil
	}
	bySource := func(obj any) ([]string, error) {
		if w, ok := obj.(*v1alpha1.Workspace); ok && w.Spec.Source != nil {
			return []string{w.Spec.Source.UID}, nil
		}
		return nil, nil
	}
	return &Directory{client: client, reads: rate.NewLimiter(readsPerSecond, readBurst),
		cache: controllers.NewCache[v1alpha1.Workspace](client, v1alpha1.WorkspaceResource, controllers.CacheOptions{
			Transform: held, Indexers: cache.Indexers{indexByUID: byUID, indexBySource: bySource}})}
}

// OnLeaving calls f when a workspace begins to leave, or is found to be gone. f must not block.
func (d *Directory) OnLeaving(f func(*v1alpha1.Workspace)) error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		switch {
		case is == nil, was != nil && was.UID != is.UID:
			f(was)
		case IsLeaving(is) && (was == nil || !IsLeaving(was)):
			f(is)
		}
	})
}

// defined is how often Run looks for the definition of Workspaces.
const defined = 200 * time.Millisecond

// Run watches until ctx ends. It does not begin before Workspaces are defined: another server may still have to do that, and after an error a
// watch pauses for longer and longer, while each new workspace costs a read.
func (d *Directory) Run(ctx context.Context) error {
	_ = wait.PollUntilContextCancel(ctx, defined, true, func(ctx context.Context) (bool, error) {
		_, err := d.client.Resource(v1alpha1.WorkspaceResource).List(ctx, metav1.ListOptions{Limit: 1})
		return !apierrors.IsNotFound(err), nil
	})
	d.cache.Informer.RunWithContext(ctx)
	return nil
}

// Find returns the workspace of the root with that name. A workspace that was created a moment ago, possibly on another server, is found
// too.
// Errors: ErrNotFound, and those of the API.
func (d *Directory) Find(ctx context.Context, name string) (*v1alpha1.Workspace, error) {
	w, known := d.cache.Get(name)
	if !known || IsLeaving(w) { // another one of the name may exist by now
		if d.cache.Informer.HasSynced() && !d.reads.Allow() { // until then, existing ones are read too
			return nil, ErrNotFound
		}
		var err error
		if w, err = d.read(ctx, name); err != nil {
			return nil, err
		}
	}
	if IsLeaving(w) {
		return nil, ErrNotFound
	}
	return w, nil
}

// Confirm reads the workspace with that UID from the API, so that no keyspace is created for one that has been deleted.
// Errors: ErrNotFound, and those of the API.
func (d *Directory) Confirm(ctx context.Context, name, uid string) (*v1alpha1.Workspace, error) {
	w, err := d.read(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case string(w.UID) != uid, IsLeaving(w):
		return nil, ErrNotFound
	}
	return w, nil
}

// AwaitLeaving returns when Find does not return the workspace of that name and UID any more, which is leaving, or with ctx's error. A watch
// tells the directory so, possibly a moment after the change: until then, requests would still open it.
func (d *Directory) AwaitLeaving(ctx context.Context, name, uid string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := d.Follow(ctx)
	for !d.isLeaving(name, uid) {
		select {
		case <-changes:
		case <-ctx.Done():
			return fmt.Errorf("wait until requests do not find workspace %s any more: %w", name, ctx.Err())
		}
	}
	return nil
}

// isLeaving reports whether Find does not return the workspace of that name and UID without reading it again.
func (d *Directory) isLeaving(name, uid string) bool {
	w, known := d.cache.Get(name)
	return !known || string(w.UID) != uid || IsLeaving(w)
}

// hasLeft reports whether a workspace was found before it began to leave, and the watch has told so since.
func (d *Directory) hasLeft(found *v1alpha1.Workspace) bool {
	w, known := d.cache.Get(found.Name)
	if !known || w.UID != found.UID || !IsLeaving(w) {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(w.ResourceVersion, found.ResourceVersion)
	return err != nil || order > 0 // otherwise found is newer: it does not leave any more
}

// ByUID returns the workspace with that UID, if the directory knows it.
func (d *Directory) ByUID(uid string) (*v1alpha1.Workspace, bool) {
	found := d.cache.By(indexByUID, uid)
	if len(found) == 0 {
		return nil, false
	}
	return found[0], true
}

// FromSource returns the workspaces whose source is the one with that UID, as far as the directory knows them.
func (d *Directory) FromSource(uid string) []*v1alpha1.Workspace {
	return d.cache.By(indexBySource, uid)
}

func (d *Directory) read(ctx context.Context, name string) (*v1alpha1.Workspace, error) {
	u, err := d.client.Resource(v1alpha1.WorkspaceResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read workspace %q: %w", name, err)
	}
	decoded, err := controllers.Decode[v1alpha1.Workspace](u)
	if err != nil {
		return nil, fmt.Errorf("read workspace %q: %w", name, err)
	}
	w, ok := decoded.(*v1alpha1.Workspace)
	if !ok {
		return nil, fmt.Errorf("read workspace %q: its object cannot be decoded", name)
	}
	return w, nil
}
