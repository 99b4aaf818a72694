package tenancy

import (
	"context"
	"sync"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// followers are those that wait for changes of the workspaces of the root.
type followers struct {
	mu  sync.Mutex
	all map[chan struct{}]struct{}
}

// notify sends to all followers. One that has not received the last notification needs no other one.
func (f *followers) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for to := range f.all {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

// Follow returns a channel that receives when a workspace of the root was created, begins or ends to be deleted, or has another phase. It is
// closed when ctx ends.
func (d *Directory) Follow(ctx context.Context) <-chan struct{} {
	to := make(chan struct{}, 1)
	d.followers.mu.Lock()
	defer d.followers.mu.Unlock()
	if d.followers.all == nil {
		d.followers.all = map[chan struct{}]struct{}{}
	}
	d.followers.all[to] = struct{}{}
	context.AfterFunc(ctx, func() {
		d.followers.mu.Lock()
		defer d.followers.mu.Unlock()
		delete(d.followers.all, to)
		close(to)
	})
	return to
}

// NotifyFollowers makes the channels of Follow receive. Call it once, before Run.
func (d *Directory) NotifyFollowers() error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		if was == nil || is == nil || was.UID != is.UID || was.Status.Phase != is.Status.Phase || IsLeaving(was) != IsLeaving(is) {
			d.followers.notify()
		}
	})
}

// List reads the workspaces of the root from the API: it has those that another server created a moment ago, too.
func (d *Directory) List(ctx context.Context) ([]*v1alpha1.Workspace, error) {
	return ListWorkspaces(ctx, d.client)
}
