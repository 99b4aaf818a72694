package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

// keepMovedTo lets only the server say that a workspace moves.
func keepMovedTo(r *apiserver.AdmissionRequest, server string) {
	spec, ok := r.Object.Object["spec"].(map[string]any)
	if r.Old != nil && r.User.Name == server {
		return
	}
	var was any
	if r.Old != nil {
		was, _, _ = unstructured.NestedFieldCopy(r.Old.Object, "spec", "movedTo")
	}
	switch {
	case was != nil && ok:
		spec["movedTo"] = was
	case was != nil:
		r.Object.Object["spec"] = map[string]any{"movedTo": was}
	case ok:
		delete(spec, "movedTo")
	}
}

// endMove ends the part that a Workspace has in a move, before its objects are removed. above is set if a workspace above it is being
// deleted, and everything in that. No move begins or ends before end is called.
// Errors: *tenancy.Unready.
func (t *tenants) endMove(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, above bool) (in context.Context, end func(), err error) {
	from, to := moveFrom(w), w.Spec.MovedTo
	end = func() {}
	if from == "" && to == nil {
		return ctx, end, nil
	}
	if held, _ := ctx.Value(movingKey{}).(bool); !held {
		if !t.moving.TryLock() {
			return nil, nil, &tenancy.Unready{Reason: "RemovalWaits", Message: "its objects are removed when another move or deletion is done", After: moveInterval}
		}
		ctx, end = context.WithValue(ctx, movingKey{}, true), t.moving.Unlock
	}
	if from != "" {
		err = (&move{t, path, w, from}).abandon(ctx)
	}
	if to != nil && !above && err == nil {
		err = t.awaitMove(ctx, w)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return ctx, end, nil
}

// movingKey is in a context whose owner has the lock tenants.moving.
type movingKey struct{}

// abandon serves the source again if its keyspace is still its own. If not, its object has nothing any more, and is removed.
func (m *move) abandon(ctx context.Context) error {
	in, client, source, release, err := m.t.objectOf(ctx, m.from)
	if errors.Is(err, tenancy.ErrNotFound) || errors.Is(err, workspaces.ErrIncomplete) { // its parent is gone, or another one by now
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the workspace that was to move: %w", err)
	}
	defer release()
	if source.UID != types.UID(m.w.Spec.Source.UID) || source.Spec.MovedTo == nil || source.Spec.MovedTo.UID != string(m.w.UID) {
		return nil
	}
	has, err := m.t.hasKeyspace(ctx, string(source.UID))
	if err != nil {
		return err
	}
	if has {
		return m.setMovedTo(in, client, source, nil)
	}
	return m.removeSource(ctx)
}

// hasKeyspace reports whether there is a keyspace with the name of a workspace's.
func (t *tenants) hasKeyspace(ctx context.Context, uid string) (bool, error) {
	_, err := t.s.datastore.OpenExisting(ctx, keyspaceOf(uid))
	if errors.Is(err, kv.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// awaitMove lets the deletion of a workspace that moves wait: the move decides what happens to its objects. Users delete them at the
// destination.
func (t *tenants) awaitMove(ctx context.Context, w *tenancyv1alpha1.Workspace) error {
	has, err := t.hasKeyspace(ctx, string(w.UID))
	if err != nil || !has {
		return err
	}
	to := w.Spec.MovedTo
	_, err = t.tree.Confirm(ctx, to.Path, to.UID)
	if errors.Is(err, tenancy.ErrNotFound) {
		return nil // the destination is being deleted, and this one too
	}
	if err != nil {
		return err
	}
	return &tenancy.Unready{Reason: "Moving", Message: fmt.Sprintf("it moves to %s, and is removed when it is there: delete that one too, to remove its objects", to.Path), After: moveInterval}
}

// openPaths are the paths at which workspaces are open, by their UIDs. A workspace below one that has moved may still be open at its former
// path. No server has two engines on one keyspace.
type openPaths struct {
	mu   sync.Mutex
	keys map[string]string // keys of the pool, by UID
}

// enter records that a workspace is being opened, unless it is open at another path: then it returns the key of that.
func (o *openPaths) enter(uid, key string) (other string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if is := o.keys[uid]; is != "" && is != key {
		return is
	}
	if o.keys == nil {
		o.keys = map[string]string{}
	}
	o.keys[uid] = key
	return ""
}

func (o *openPaths) leave(uid, key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys[uid] == key {
		delete(o.keys, uid)
	}
}

// closeFormer closes a workspace at the path that it had before it moved. It returns when no request uses it there.
// Errors: tenancy.ErrNotFound if the workspace is not at this path.
func (t *tenants) closeFormer(ctx context.Context, uid, path, key string) error {
	for {
		other := t.paths.enter(uid, key)
		if other == "" {
			return nil
		}
		if _, err := t.tree.Confirm(ctx, path, uid); err != nil {
			return fmt.Errorf("confirm the path: %w", err)
		}
		if err := t.pool.End(ctx, other); err != nil {
			return err
		}
	}
}

// mayEnd reports whether this server is to end the requests to a workspace that moves. The server that moves it does so by itself, and then
// opens the workspace once more.
func (t *tenants) mayEnd() bool {
	free := t.moving.TryLock()
	if free {
		t.moving.Unlock()
	}
	return free
}

// endMoved ends the requests on this server to the workspaces directly in another one that are moving.
func (t *tenants) endMoved(ctx context.Context, parent string) {
	for _, key := range t.pool.Keys() {
		uid, path := tenancy.ParseKey(key)
		if tenancy.Parent(path) != parent {
			continue
		}
		if _, _, w, release, err := t.objectOf(ctx, path); err == nil {
			release()
			if string(w.UID) == uid && w.Spec.MovedTo != nil {
				t.end(ctx, path, w)
			}
		}
	}
}
