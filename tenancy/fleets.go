package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// A workspace with Clusters or Providers needs controllers without any request. Its mark is in status.fleets of the Workspace of the root on its path, because nothing
// watches the other ones. Each request that creates one of these writes a new mark before it is stored. The elected server removes a mark
// only if it has seen exactly this mark for longer than a request takes, and the workspace has had none of them since. So none ever lacks a mark.
// A mark is SINCE/ID: SINCE is ordered by the time of the first mark, and the workspaces get places for their fleets in this order, also after another
// server is elected. Marks of earlier versions have no SINCE, and are the first.

// errNotRecorded is returned if the definition of Workspaces has no place for marks.
var errNotRecorded = errors.New("the mark was not stored: a server of an earlier version uses the same datastore: upgrade all servers")

// MarkFleet records that the workspace with that path has Clusters or Providers, or is about to, and returns when that is durable.
// Errors: ErrNotFound.
func (d *Directory) MarkFleet(ctx context.Context, path string) error {
	name, _ := rootOf(path)
	root, err := d.Find(ctx, name)
	if err != nil {
		return err
	}
	mark, err := nextMark(fleetsOf(root)[path])
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": root.UID}, "status": map[string]any{"fleets": map[string]any{path: mark}}})
	if err != nil {
		return err
	}
	written, err := d.client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if err != nil {
		return fmt.Errorf("mark workspace %s as one with Clusters or Providers: %w", path, err)
	}
	if stored, _, _ := unstructured.NestedStringMap(written.Object, "status", "fleets"); stored[path] != mark {
		return fmt.Errorf("mark workspace %s as one with Clusters or Providers: %w", path, errNotRecorded)
	}
	return nil
}

// nextMark returns a mark that no other one equals, with the place of the present one, which is "" for the first mark.
func nextMark(present string) (string, error) {
	since := sinceOf(present)
	if present == "" {
		first, err := uuid.NewV7() // begins with the time
		if err != nil {
			return "", err
		}
		since = first.String()
	}
	return since + "/" + uuid.NewString(), nil
}

// sinceOf returns the part of a mark that orders the workspaces.
func sinceOf(mark string) string {
	since, _, ordered := strings.Cut(mark, "/")
	if !ordered {
		return ""
	}
	return since
}

// UnmarkFleet removes a mark, unless there is a newer one.
func (d *Directory) UnmarkFleet(ctx context.Context, path, mark string) error {
	name, _ := rootOf(path)
	at := "/status/fleets/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(path)
	patch, err := json.Marshal([]map[string]any{{"op": "test", "path": at, "value": mark}, {"op": "remove", "path": at}})
	if err != nil {
		return err
	}
	_, err = d.client.Resource(v1alpha1.WorkspaceResource).Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // it is gone, or another one
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the mark of workspace %s: %w", path, err)
	}
	return nil
}

// FleetMarks returns the marks of all workspaces by their paths, as far as the directory knows them.
func (d *Directory) FleetMarks() map[string]string {
	all := map[string]string{}
	for _, w := range d.cache.All() {
		maps.Copy(all, fleetsOf(w))
	}
	return all
}

// FleetMark returns the mark of the workspace with that path, "" if the directory knows none.
func (d *Directory) FleetMark(path string) string {
	name, _ := rootOf(path)
	w, _ := d.cache.Get(name)
	return fleetsOf(w)[path]
}

// ReadFleetMarks reads the paths of the marked workspaces among one and those in it from the API.
func (d *Directory) ReadFleetMarks(ctx context.Context, path string) ([]string, error) {
	name, _ := rootOf(path)
	root, err := d.read(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	within := slices.DeleteFunc(slices.Collect(maps.Keys(fleetsOf(root))), func(marked string) bool { return !IsWithin(marked, path) })
	slices.Sort(within)
	return within, nil
}

// OnFleets calls f when marks may have changed. f must not block.
func (d *Directory) OnFleets(f func()) error {
	return d.cache.OnChange(func(was, is *v1alpha1.Workspace) {
		if !maps.Equal(fleetsOf(was), fleetsOf(is)) {
			f()
		}
	})
}

// fleetsOf returns the marks in a Workspace of the root, which may be nil. Those of other workspaces have no effect, whoever wrote them.
func fleetsOf(root *v1alpha1.Workspace) map[string]string {
	if root == nil || root.DeletionTimestamp != nil {
		return nil
	}
	marks := maps.Clone(root.Status.Fleets)
	maps.DeleteFunc(marks, func(path, mark string) bool { return !IsWithin(path, root.Name) || mark == "" })
	return marks
}
