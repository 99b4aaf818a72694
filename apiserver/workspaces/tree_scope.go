package workspaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/merged"
)

// tenancyPrefix begins the keys of Workspaces and APIBindings.
const tenancyPrefix = "/registry/" + tenancyv1alpha1.Group + "/"

// treeScope is all workspaces of a tree. Those in a workspace are found in its keyspace, so a watch follows each of them.
type treeScope struct {
	*chain
	tree     *tree
	resource schema.GroupResource
	// custom is set for a resource that workspaces have only by a definition or an APIBinding.
	custom *customRequest
}

var _ scope = treeScope{}

// Name implements scope. No export has such a name, so positions of views are not those of trees.
func (s treeScope) Name() string { return Prefix + s.tree.String() + " " + s.resource.String() }

func (s treeScope) Positions() *merged.Positions { return &s.tree.top.positions }

func (treeScope) Noun() string { return "a workspace of the tree" }

func (treeScope) gone(context.Context, merged.Ref) {}

// Members implements scope: it opens all workspaces of the tree, level by level.
func (s treeScope) Members(ctx context.Context) ([]merged.Ref, error) {
	level, err := s.Refresh(ctx)
	all := level
	for err == nil && len(level) > 0 {
		if len(all) > merged.MaxWorkspaces {
			return nil, s.tooMany()
		}
		var mu sync.Mutex
		var next []merged.Ref
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(merged.OpenedAtOnce)
		for _, ref := range level {
			group.Go(func() error {
				in, w, release, err := s.enter(ctx, s, ref)
				if errors.Is(err, ErrNotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				defer release()
				below, err := s.below(in, w, ref)
				mu.Lock()
				defer mu.Unlock()
				next = append(next, below...)
				return err
			})
		}
		err = group.Wait()
		level, all = next, append(all, next...)
	}
	return all, err
}

func (s treeScope) tooMany() error {
	return merged.TooMany("below "+s.tree.at(), "list or watch a smaller tree, such as /clusters/PATH:*")
}

// Follow implements scope.
func (s treeScope) Follow(ctx context.Context) (<-chan struct{}, error) {
	if s.tree.isOfRoot() {
		return s.root.Follow(ctx), nil
	}
	return s.tree.top.follow(ctx, tenancyPrefix)
}

// Refresh implements scope: the workspaces directly below the top.
func (s treeScope) Refresh(ctx context.Context) ([]merged.Ref, error) {
	if !s.tree.isOfRoot() {
		return s.below(ctx, s.tree.top, merged.Ref{Path: s.tree.path})
	}
	children, err := s.root.Workspaces(ctx)
	if err != nil {
		return nil, err
	}
	return s.refs("", children)
}

// refs returns the references to the children of a path.
func (s treeScope) refs(path string, children []Child) ([]merged.Ref, error) {
	if len(children) > merged.MaxWorkspaces {
		return nil, s.tooMany()
	}
	var out []merged.Ref
	for _, c := range children {
		ref := merged.Ref{UID: c.UID, Path: c.Name, Revision: c.Revision}
		if path != "" {
			ref.Path = path + ":" + c.Name
		}
		out = append(out, ref)
	}
	return out, nil
}

// below implements scope.
func (s treeScope) below(ctx context.Context, w *Workspace, of merged.Ref) ([]merged.Ref, error) {
	children, err := s.children(ctx, w)
	if err != nil {
		return nil, err
	}
	return s.refs(of.Path, children)
}

// children reads the Workspaces in a workspace that are not being deleted, and at most one more than a tree may have.
func (c *chain) children(ctx context.Context, w *Workspace) ([]Child, error) {
	resource := tenancyv1alpha1.WorkspaceResource.GroupResource()
	found, err := w.client.KV.Get(ctx, customKey(resource), clientv3.WithPrefix(), clientv3.WithLimit(merged.MaxWorkspaces+1))
	if err != nil {
		return nil, fmt.Errorf("read the workspaces in a workspace: %w", err)
	}
	var out []Child
	for _, kv := range found.Kvs {
		data, _, err := c.transformer(resource).TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key))
		if err != nil {
			return nil, fmt.Errorf("decrypt %s: %w", kv.Key, err)
		}
		var is metav1.PartialObjectMetadata
		if err := json.Unmarshal(data, &is); err != nil {
			return nil, fmt.Errorf("decode %s: %w", kv.Key, err)
		}
		if is.DeletionTimestamp == nil {
			out = append(out, Child{strings.TrimPrefix(string(kv.Key), customKey(resource)), string(is.UID), kv.ModRevision})
		}
	}
	return out, nil
}

func (s treeScope) in(ctx context.Context, w *Workspace, ref merged.Ref, of *requestStore) (merged.Source, error) {
	if s.custom == nil {
		return sourceIn(w, of)
	}
	return s.custom.source(ctx, s.chain, w, ref.Path)
}

// followIn implements scope: Workspaces and APIBindings change, the definition of the resource, and the APIExport of the binding that has it.
func (s treeScope) followIn(ctx context.Context, w *Workspace) (<-chan struct{}, error) {
	if s.custom == nil {
		return w.follow(ctx, tenancyPrefix)
	}
	ctx, end := context.WithCancel(ctx)
	own, err := w.followAll(ctx, tenancyPrefix, definitionsPrefix+s.resource.Resource+"."+s.resource.Group)
	if err != nil {
		end()
		return nil, err
	}
	changed, err := s.followCustom(ctx, w, own)
	if err != nil {
		end()
	}
	return changed, err
}

func (s treeScope) Waits() bool { return s.custom != nil }
