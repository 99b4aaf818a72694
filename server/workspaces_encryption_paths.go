package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/tenancy"
)

// uidOf returns the UID of the workspace that a keyspace, or a partition of it, belongs to. The workspace of the definitions has none.
func uidOf(keyspace string) string {
	if parent, _, ok := kv.ParsePartitionName(keyspace); ok {
		keyspace = parent
	}
	return strings.TrimPrefix(keyspace, workspaceKeyspaces)
}

// named returns what errors call the workspace of a keyspace: its path, if that can be found.
func (p *encryptionPass) named(ctx context.Context, keyspace string) string {
	if path, err := p.path(ctx, uidOf(keyspace)); err == nil {
		return "workspace " + path
	}
	return "keyspace " + keyspace
}

// path returns the path of the workspace with that UID.
func (p *encryptionPass) path(ctx context.Context, uid string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paths == nil {
		p.paths = map[string]string{}
		roots, err := tenancy.ListWorkspaces(ctx, p.t.client)
		p.unread = errors.Join(err, p.walk(ctx, "", roots))
	}
	if path, known := p.paths[uid]; known {
		return path, nil
	}
	if p.unread != nil {
		return "", fmt.Errorf("find its Workspace: %w", p.unread)
	}
	return "", errors.New("there is no Workspace that it belongs to: it is being created or deleted")
}

// walk records the paths of workspaces and of the workspaces in them. It goes on after an error, and returns the first one.
func (p *encryptionPass) walk(ctx context.Context, parent string, children []*tenancyv1alpha1.Workspace) (failed error) {
	for _, w := range children {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		path := below(parent, w.Name)
		if tenancy.IsLeaving(w) {
			continue
		}
		p.paths[string(w.UID)] = path
		if err := p.walkIn(ctx, path, string(w.UID)); err != nil && failed == nil {
			failed = fmt.Errorf("list the workspaces in %s: %w", path, err)
		}
	}
	return failed
}

// walkIn records the paths of the workspaces in one. It opens only one that has some.
func (p *encryptionPass) walkIn(ctx context.Context, path, uid string) error {
	table, err := p.t.s.datastore.OpenExisting(ctx, keyspaceOf(uid))
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte(storedWorkspaces)), Limit: 1, KeysOnly: true}, false)
	if err != nil || len(found.KVs) == 0 {
		return err
	}
	in, client, release, err := p.t.openFor(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	children, err := tenancy.ListWorkspaces(in, client)
	if err != nil {
		return err
	}
	return p.walk(ctx, path, children)
}

// storedWorkspaces begins the keys of the Workspaces in a workspace.
const storedWorkspaces = "/registry/" + tenancyv1alpha1.Group + "/workspaces/"
