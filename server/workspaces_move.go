package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

// moveInterval is the time after which the controller looks again at a move that has to wait.
const moveInterval = time.Second

// move makes a Workspace the one that has the keyspace of another workspace. The controller of the Workspace at the destination does all of it,
// and repeats it from the beginning after an error or a crash, on any server. The name of the keyspace decides how far it is: it has the
// UID of one of the two Workspaces. DESIGN.md of apiserver/workspaces has the steps.
type move struct {
	t    *tenants
	to   string // path of the destination
	w    *tenancyv1alpha1.Workspace
	from string // path of the source
}

// moveSource makes a Workspace with spec.source.moveFrom the one that has the keyspace of that workspace.
// Errors: *tenancy.Unready.
func (t *tenants) moveSource(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) error {
	m := &move{t, path, w, moveFrom(w)}
	if m.from == "" {
		return nil
	}
	// One at a time: two workspaces could otherwise each move below the other one.
	if !t.moving.TryLock() {
		return &tenancy.Unready{Reason: "MoveWaits", Message: "it begins when another move or deletion is done", After: moveInterval}
	}
	defer t.moving.Unlock()
	state, err := t.stateOfCopy(ctx, string(w.UID))
	if err == nil && state != workspaces.Complete {
		err = m.take(ctx)
	}
	if err != nil {
		return err
	}
	return m.finish(ctx)
}

// moveFrom is the path of the workspace that moves to a Workspace, "" if none does.
func moveFrom(w *tenancyv1alpha1.Workspace) string {
	if w.Spec.Source == nil {
		return ""
	}
	return w.Spec.Source.MoveFrom
}

// objectOf returns the object of a workspace, in whatever state it is, and a client of the API that has it.
// Errors: tenancy.ErrNotFound, also if its parent is leaving.
func (t *tenants) objectOf(ctx context.Context, path string) (in context.Context, client dynamic.Interface, w *tenancyv1alpha1.Workspace, release func(), err error) {
	in, client, release = ctx, t.client, func() {}
	name := path
	if parent := tenancy.Parent(path); parent != "" {
		name = path[len(parent)+1:]
		if in, client, release, err = t.openFor(ctx, parent); err != nil {
			return nil, nil, nil, nil, err
		}
	}
	u, err := client.Resource(tenancyv1alpha1.WorkspaceResource).Get(in, name, metav1.GetOptions{})
	if err == nil {
		var decoded any
		if decoded, err = controllers.Decode[tenancyv1alpha1.Workspace](u); err == nil {
			w, _ = decoded.(*tenancyv1alpha1.Workspace)
		}
	}
	if apierrors.IsNotFound(err) || err == nil && w == nil {
		err = tenancy.ErrNotFound
	}
	if err != nil {
		release()
		return nil, nil, nil, nil, err
	}
	return in, client, w, release, nil
}

// take ends the requests to the source, and renames its keyspace.
func (m *move) take(ctx context.Context) error {
	in, client, source, release, err := m.t.objectOf(ctx, m.from)
	if errors.Is(err, tenancy.ErrNotFound) || err == nil && source.UID != types.UID(m.w.Spec.Source.UID) {
		if err == nil {
			release()
		}
		return m.gone()
	}
	if err != nil {
		return fmt.Errorf("read the workspace that moves: %w", err)
	}
	defer release()
	marked := source.Spec.MovedTo != nil
	if err := m.checkSource(in, source); err != nil {
		return err
	}
	// Nothing above the destination is leaving, and while it has the lock, nothing begins to move.
	if _, err := m.t.tree.Confirm(ctx, m.to, string(m.w.UID)); err != nil {
		return fmt.Errorf("confirm the destination: %w", err)
	}
	if !marked {
		if err := m.setMovedTo(in, client, source, &tenancyv1alpha1.WorkspaceDestination{Path: m.to, UID: string(m.w.UID)}); err != nil {
			return err
		}
	}
	if err := m.endRequests(ctx, source); err != nil {
		return &tenancy.Unready{Reason: "Moving", Message: fmt.Sprintf("it waits until the requests to workspace %s have ended", m.from), After: moveInterval}
	}
	// Requests may have created workspaces in it since the first check.
	if err := m.checkBelow(ctx, source); err != nil {
		if unready, ok := errors.AsType[*tenancy.Unready](err); ok {
			return errors.Join(unready, m.setMovedTo(in, client, source, nil))
		}
		return err
	}
	if err := m.prepare(ctx, source); err != nil {
		return err
	}
	return m.rename(ctx, string(source.UID))
}

// gone is the state of a move whose source does not exist any more.
func (m *move) gone() error {
	return &tenancy.Unready{Reason: "SourceNotFound", Message: fmt.Sprintf("workspace %s, which was to move here, does not exist any more: delete this one", m.from)}
}

// checkSource refuses a source that cannot move now.
func (m *move) checkSource(ctx context.Context, source *tenancyv1alpha1.Workspace) error {
	to := source.Spec.MovedTo
	switch {
	case to != nil && to.UID != string(m.w.UID):
		return &tenancy.Unready{Reason: "SourceMoves", Message: fmt.Sprintf("workspace %s moves to %s: delete this one", m.from, to.Path)}
	case to != nil:
		return nil // this move has begun
	case source.DeletionTimestamp != nil:
		return m.gone()
	case !equality.Semantic.DeepEqual(source.Spec.Limits, m.w.Spec.Limits):
		// The workspace above the destination has given away as much as its limits, and the source may use as much as its own.
		return &tenancy.Unready{Reason: "LimitsDiffer", Message: fmt.Sprintf("the limits of workspace %s, or of this one, have changed: make spec.limits of both equal, or delete this one and move again", m.from), After: moveInterval}
	}
	return m.t.movable(ctx, m.from, source, m.to)
}

// setMovedTo marks the source as leaving, or serves it again.
func (m *move) setMovedTo(ctx context.Context, client dynamic.Interface, source *tenancyv1alpha1.Workspace, to *tenancyv1alpha1.WorkspaceDestination) error {
	metadata := map[string]any{"uid": source.UID}
	if to != nil {
		metadata["resourceVersion"] = source.ResourceVersion // it is not deleted meanwhile
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": map[string]any{"movedTo": to}})
	if err != nil {
		return err
	}
	_, err = client.Resource(tenancyv1alpha1.WorkspaceResource).Patch(ctx, source.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: tenancy.FieldManager})
	if err != nil {
		return fmt.Errorf("mark workspace %s as moving: %w", m.from, err)
	}
	return m.changed(ctx)
}

// changed tells all servers that the object of the source has changed. They know those of the root by themselves.
func (m *move) changed(ctx context.Context) error {
	parent := tenancy.Parent(m.from)
	if parent == "" {
		return nil
	}
	return m.t.directory.RecordChange(ctx, parent)
}

// prepare writes what the keyspace needs under its new name, through the only engine that this server may have open on it.
func (m *move) prepare(ctx context.Context, source *tenancyv1alpha1.Workspace) error {
	key := tenancy.Key(string(source.UID), m.from)
	in, open, release, err := m.t.pool.Acquire(ctx, key)
	if err != nil {
		return fmt.Errorf("open workspace %s: %w", m.from, err)
	}
	err = workspaces.PrepareMove(in, open.keyspace, open.Workspace)
	release()
	if err != nil {
		return err
	}
	return m.endRequests(ctx, source)
}

// endRequests ends the requests to the source on this server. Those on others fail when the keyspace is renamed.
func (m *move) endRequests(ctx context.Context, source *tenancyv1alpha1.Workspace) error {
	ctx, cancel := context.WithTimeout(ctx, workspaceEndTimeout)
	defer cancel()
	if tenancy.Parent(m.from) == "" {
		if err := m.t.directory.AwaitLeaving(ctx, m.from, string(source.UID)); err != nil {
			return err
		}
	}
	return m.t.pool.End(ctx, tenancy.Key(string(source.UID), m.from))
}

// rename gives the keyspace of the source the name of the destination's. If the destination was deleted at the same time, which a server that
// was the elected one until then may not know, it has its old name again.
func (m *move) rename(ctx context.Context, source string) error {
	names, ok := m.t.s.datastore.Backend.(kv.Renamer)
	if !ok {
		return fmt.Errorf("the datastore %s cannot rename keyspaces", m.t.s.datastore.URL())
	}
	from, to := keyspaceOf(source), keyspaceOf(string(m.w.UID))
	if _, err := m.t.tree.Confirm(ctx, m.to, string(m.w.UID)); err != nil {
		return fmt.Errorf("confirm the destination: %w", err)
	}
	err := names.Rename(ctx, from, to)
	if errors.Is(err, kv.ErrKeyNotFound) {
		state, problem := m.t.stateOfCopy(ctx, string(m.w.UID))
		if problem == nil && state == workspaces.Complete {
			return nil // an earlier attempt has done it, and its answer was lost
		}
		return errors.Join(m.gone(), problem)
	}
	if err != nil {
		return err
	}
	_, err = m.t.tree.Confirm(ctx, m.to, string(m.w.UID))
	if errors.Is(err, tenancy.ErrNotFound) {
		err = errors.Join(fmt.Errorf("the destination was deleted: %w", err), names.Rename(ctx, to, from))
	}
	return err
}

// finish makes everything in the workspace know its new path, and removes the former object. The keyspace has its new name.
func (m *move) finish(ctx context.Context) error {
	err := m.t.walk(ctx, m.to, string(m.w.UID), func(in context.Context, path string, open *tenant, children []*tenancyv1alpha1.Workspace) error {
		// Also if it was not due at its former path: that mark may have been removed already, because nothing was found there.
		if err := m.t.marker.Mark(ctx, tenancy.Controllers, path, open.UID()); err != nil {
			return err
		}
		placed := map[string]string{}
		if path == m.to && m.w.Spec.Placement != nil {
			placed[path] = open.UID()
		}
		for _, child := range children {
			if child.Spec.Placement != nil {
				placed[below(path, child.Name)] = string(child.UID)
			}
		}
		for path, uid := range placed {
			if err := m.t.marker.Mark(ctx, tenancy.Placement, path, uid); err != nil {
				return err
			}
		}
		m.t.recordBindings(workspaces.WithPath(in, open.Workspace, path))
		if len(children) == 0 {
			return nil
		}
		return m.t.directory.RecordChange(ctx, path) // the controller writes the paths into their statuses
	})
	if err != nil {
		return fmt.Errorf("the workspaces in %s: %w", m.to, err)
	}
	return m.removeSource(ctx)
}

// removeSource deletes the object of the source. It has no keyspace any more, so nothing is removed with it.
func (m *move) removeSource(ctx context.Context) error {
	in, client, source, release, err := m.t.objectOf(ctx, m.from)
	if errors.Is(err, tenancy.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	if source.UID != types.UID(m.w.Spec.Source.UID) || source.DeletionTimestamp != nil {
		return nil
	}
	err = client.Resource(tenancyv1alpha1.WorkspaceResource).Delete(in, source.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &source.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return &tenancy.Unready{Reason: "SourceNotRemoved", Message: fmt.Sprintf("the workspace has moved and is served, but its former object %s cannot be deleted: %v", m.from, err), After: moveInterval}
	}
	return m.changed(ctx)
}
