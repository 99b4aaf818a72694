package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// Nothing watches the Workspaces in workspaces. The server that changes some records it in the Workspace of the root above them, in
// status.changes, before and after the change. The controller watches those of the root, and then reads the workspace that changed.
//
// The record before the change is for a crash between the two. The controller may see it before the change is made, and so keeps it for
// longer than a request takes. Then it looks once more, and removes it.

// changeLasts is how long a change may take. A request takes a minute at most.
const changeLasts = 2 * time.Minute

// RecordChange records that Workspaces in the workspace with that path are about to change, or have changed.
func (d *Directory) RecordChange(ctx context.Context, path string) error {
	name, _, _ := strings.Cut(path, ":")
	root, err := d.Find(ctx, name)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": root.UID}, "status": map[string]any{"changes": map[string]any{path: uuid.NewString()}}})
	if err != nil {
		return err
	}
	_, err = d.client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if err != nil {
		return fmt.Errorf("record a change in workspace %s: %w", path, err)
	}
	return nil
}

// changes are the recorded changes that the controller has seen since it began.
type changes struct {
	mu   sync.Mutex
	seen map[changeKey]*change
}

type changeKey struct{ uid, path string }

type change struct {
	id    string
	first time.Time
	// settled is set if the controller has looked after it saw this change.
	settled bool
}

// enter returns the state of a change: a copy, which only the worker of its workspace uses.
func (c *changes) enter(key changeKey, id string, now time.Time) change {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.seen[key]; is == nil || is.id != id {
		c.seen[key] = &change{id: id, first: now}
	}
	return *c.seen[key]
}

func (c *changes) settle(key changeKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.seen[key]; is != nil {
		is.settled = true
	}
}

func (c *changes) forget(key changeKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, key)
}

// forgetAll forgets the changes in a workspace of the root that is being deleted.
func (c *changes) forgetAll(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.seen, func(key changeKey, _ *change) bool { return key.uid == uid })
}

// settle creates and removes the workspaces within one of the root that have changed.
func (c *controller) settle(ctx context.Context, root *v1alpha1.Workspace) error {
	var failed []error
	over := map[string]any{}
	for path, id := range root.Status.Changes {
		key := changeKey{string(root.UID), path}
		known := c.changes.enter(key, id, c.Clock.Now())
		left := changeLasts - c.Clock.Since(known.first)
		if !known.settled || left <= 0 {
			if err := c.settleChildren(ctx, root.Name, path); err != nil {
				failed = append(failed, fmt.Errorf("workspaces in %s: %w", path, err))
				continue
			}
			c.changes.settle(key)
		}
		if left > 0 {
			c.queue.AddAfter(root.Name, left)
			continue
		}
		over[path] = nil
	}
	if len(over) > 0 && len(failed) == 0 {
		failed = append(failed, c.removeChanges(ctx, root, over))
	}
	return errors.Join(failed...)
}

// removeChanges removes records of changes, unless there are newer ones.
func (c *controller) removeChanges(ctx context.Context, root *v1alpha1.Workspace, over map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": root.UID, "resourceVersion": root.ResourceVersion}, "status": map[string]any{"changes": over}})
	if err != nil {
		return err
	}
	_, err = c.Client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, root.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if err != nil {
		return fmt.Errorf("remove the records of changes in workspace %s: %w", root.Name, err)
	}
	for path := range over {
		c.changes.forget(changeKey{string(root.UID), path})
	}
	return nil
}

// settleChildren creates and removes the workspaces directly in another one.
func (c *controller) settleChildren(ctx context.Context, root, path string) error {
	if name, _, _ := strings.Cut(path, ":"); name != root || c.Open == nil {
		return nil // not a change that a server recorded
	}
	in, client, release, err := c.Open(ctx, path)
	if errors.Is(err, ErrNotFound) {
		return nil // it is removed with all that is in it
	}
	if err != nil {
		return err
	}
	defer release()
	all, err := ListWorkspaces(in, client)
	if err != nil {
		return err
	}
	var failed []error
	if c.Settle != nil {
		if err := c.Settle(in, path, all); err != nil {
			failed = append(failed, err)
		}
	}
	for _, w := range all {
		if in.Err() != nil {
			break
		}
		if err := c.advance(in, place{client, path + ":" + w.Name}, w); err != nil {
			failed = append(failed, err)
		}
	}
	if ctx.Err() == nil && in.Err() != nil {
		return nil // it is being deleted
	}
	return errors.Join(failed...)
}

// listPage is how many Workspaces one request reads.
const listPage = 500

// ListWorkspaces reads the Workspaces of the root or of a workspace.
func ListWorkspaces(ctx context.Context, client dynamic.Interface) (all []*v1alpha1.Workspace, err error) {
	for options := (metav1.ListOptions{Limit: listPage}); ; {
		list, err := client.Resource(v1alpha1.WorkspaceResource).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list workspaces: %w", err)
		}
		for i := range list.Items {
			decoded, err := controllers.Decode[v1alpha1.Workspace](&list.Items[i])
			if err != nil {
				return nil, fmt.Errorf("read workspace %q: %w", list.Items[i].GetName(), err)
			}
			if w, ok := decoded.(*v1alpha1.Workspace); ok {
				all = append(all, w)
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}
