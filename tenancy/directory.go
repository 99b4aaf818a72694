package tenancy

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"golang.org/x/time/rate"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// ErrNotFound is returned if there is no workspace of that name, or if it is being deleted.
var ErrNotFound = errors.New("workspace not found")

// Directory knows the workspaces of the root from a watch.
type Directory struct {
	client dynamic.Interface
	cache  controllers.Cache[v1alpha1.Workspace]
	// reads bounds the reads of names that the cache does not have: any client that reaches the server can ask for any name.
	reads *rate.Limiter
}

const (
	readsPerSecond = 100
	readBurst      = 200
)

const indexByUID = "uid"

// NewDirectory returns a directory. The caller runs it.
func NewDirectory(client dynamic.Interface) *Directory {
	byUID := func(obj any) ([]string, error) {
		if w, ok := obj.(*v1alpha1.Workspace); ok {
			return []string{string(w.UID)}, nil
		}
		return nil, nil
	}
	return &Directory{client: client, reads: rate.NewLimiter(readsPerSecond, readBurst),
		cache: controllers.NewCache[v1alpha1.Workspace](client, v1alpha1.WorkspaceResource, controllers.CacheOptions{Indexers: cache.Indexers{indexByUID: byUID}})}
}

// OnDeletion calls f when a workspace begins to be deleted, or is found to be gone. f must not block.
func (d *Directory) OnDeletion(f func(*v1alpha1.Workspace)) error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		switch {
		case is == nil, was != nil && was.UID != is.UID:
			f(was)
		case is.DeletionTimestamp != nil && (was == nil || was.DeletionTimestamp == nil):
			f(is)
		}
	})
}

// Run watches until ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	d.cache.Informer.RunWithContext(ctx)
	return nil
}

// Find returns the workspace of the root with that name. A workspace that was created a moment ago, possibly on another server, is found
// too.
// Errors: ErrNotFound, and those of the API.
func (d *Directory) Find(ctx context.Context, name string) (*v1alpha1.Workspace, error) {
	w, known := d.cache.Get(name)
	if !known || w.DeletionTimestamp != nil { // another one of the name may exist by now
		if !d.reads.Allow() {
			return nil, ErrNotFound
		}
		var err error
		if w, err = d.read(ctx, name); err != nil {
			return nil, err
		}
	}
	if w.DeletionTimestamp != nil {
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
	case string(w.UID) != uid, w.DeletionTimestamp != nil:
		return nil, ErrNotFound
	}
	return w, nil
}

// ByUID returns the workspace with that UID, if the directory knows it.
func (d *Directory) ByUID(uid string) (*v1alpha1.Workspace, bool) {
	found := d.cache.By(indexByUID, uid)
	if len(found) == 0 {
		return nil, false
	}
	return found[0], true
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
