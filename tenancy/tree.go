package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// MaxDepth is how many names the path of a workspace may have. Requests open all workspaces on their path.
const MaxDepth = 8

// Tree finds and opens workspaces by their paths, from the root down: NAME, or NAME:NAME for a workspace in another one.
//
// Each step reads the Workspace from the keyspace of its parent. Only the first one may come from a cache, that of the Directory, which a
// watch keeps. So a path never leads to a workspace that has been deleted, also if all names on it exist again.
type Tree[W any] struct {
	Directory *Directory
	Pool      *Pool[W]
	// Child reads the Workspace of a name from the open workspace that has it.
	// Errors: ErrNotFound.
	Child func(ctx context.Context, parent W, name string) (*v1alpha1.Workspace, error)
}

// Key is a workspace's key in the Pool: its UID, which no other workspace ever gets, and the path by which it can be read.
func Key(uid, path string) string { return uid + " " + path }

// ParseKey returns the parts of a Key.
func ParseKey(key string) (uid, path string) {
	uid, path, _ = strings.Cut(key, " ")
	return uid, path
}

// Acquire returns the open workspace with that path for one request, as Pool.Acquire does. Its ancestors stay open as long. The returned
// context ends when the workspace or one of its ancestors is leaving.
// Errors: ErrNotFound, and those of Pool.Acquire.
func (t *Tree[W]) Acquire(ctx context.Context, path string) (in context.Context, w W, release func(), err error) {
	return t.walk(ctx, path, t.Directory.Find)
}

// Confirm reads the Workspace with that path and UID from the API, and does so for its ancestors too, so that no keyspace is created for
// one that has been deleted.
// Errors: ErrNotFound, and those of the API.
func (t *Tree[W]) Confirm(ctx context.Context, path, uid string) (*v1alpha1.Workspace, error) {
	parent, name, nested := cutLast(path)
	if !nested {
		return t.Directory.Confirm(ctx, path, uid)
	}
	in, open, release, err := t.walk(ctx, parent, t.Directory.read)
	if err != nil {
		return nil, err
	}
	defer release()
	found, err := t.child(in, open, name)
	if err == nil && string(found.UID) != uid {
		return nil, ErrNotFound
	}
	return found, err
}

// walk opens the workspaces on a path, one after the other. root finds the first one.
func (t *Tree[W]) walk(ctx context.Context, path string, root func(context.Context, string) (*v1alpha1.Workspace, error)) (_ context.Context, w W, _ func(), err error) {
	names := strings.Split(path, ":")
	if len(names) > MaxDepth || slices.Contains(names, "") {
		return nil, w, nil, ErrNotFound
	}
	var releases []func()
	release := func() {
		for _, r := range slices.Backward(releases) {
			r()
		}
	}
	for i, name := range names {
		var found *v1alpha1.Workspace
		if i == 0 {
			if found, err = root(ctx, name); err == nil && IsLeaving(found) {
				err = ErrNotFound
			}
		} else {
			found, err = t.child(ctx, w, name)
		}
		var leave func()
		if err == nil {
			ctx, w, leave, err = t.Pool.Acquire(ctx, Key(string(found.UID), strings.Join(names[:i+1], ":")))
		}
		if errors.Is(err, ErrEnded) {
			err = ErrNotFound
		}
		if err == nil && i == 0 && t.Directory.hasLeft(found) {
			// It was found before, and opened again after all its requests had been ended.
			leave()
			err = ErrNotFound
		}
		if err != nil {
			release()
			var none W
			return nil, none, nil, err
		}
		releases = append(releases, leave)
	}
	return ctx, w, release, nil
}

// child reads a Workspace that is not leaving.
func (t *Tree[W]) child(ctx context.Context, parent W, name string) (*v1alpha1.Workspace, error) {
	found, err := t.Child(ctx, parent, name)
	if err == nil && IsLeaving(found) {
		return nil, ErrNotFound
	}
	return found, err
}

// Parent returns the path of the workspace that has the Workspace with that path; "" stands for the root.
func Parent(path string) string {
	parent, _, _ := cutLast(path)
	return parent
}

// Name returns the last name of a path.
func Name(path string) string {
	_, name, _ := cutLast(path)
	return name
}

// IsWithin reports whether a path is that of a workspace, or of one below it.
func IsWithin(path, workspace string) bool {
	return path == workspace || strings.HasPrefix(path, workspace+":")
}

// Depth returns how many names a path has.
func Depth(path string) int { return strings.Count(path, ":") + 1 }

// cutLast splits the last name from a path.
func cutLast(path string) (parent, name string, nested bool) {
	i := strings.LastIndexByte(path, ':')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// CheckNested returns an error if a workspace may not have workspaces in it, because their paths would be too long.
func CheckNested(parent string) error {
	if strings.Count(parent, ":")+1 >= MaxDepth {
		return fmt.Errorf("workspace %s is %d levels below the root, which is the limit: create the workspace further up", parent, MaxDepth)
	}
	return nil
}
