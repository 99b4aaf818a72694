package workspaces

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/atoll-dev/atoll/apiserver"
)

// UID returns the UID that the workspace was opened with.
func (w *Workspace) UID() string { return w.uid }

// Allowed reports whether the RBAC of an open workspace gives a user a verb for an object. The user must be the same in all workspaces,
// and not apiserver.Impersonated.
func (s *Server) Allowed(ctx context.Context, w *Workspace, who apiserver.User, verb string, resource schema.GroupVersionResource, name string) (bool, error) {
	chain, err := s.built()
	if err != nil {
		return false, err
	}
	decision, _, err := chain.generic.Authorization.Authorizer.Authorize(withWorkspace(ctx, w, ""), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: who.Name, Groups: who.Groups}, Verb: verb, APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource,
		Name: name, ResourceRequest: true})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}

// DefinedGroups returns the groups in which a workspace has CustomResourceDefinitions of its own.
func (s *Server) DefinedGroups(ctx context.Context, w *Workspace) (map[string]bool, error) {
	found, err := w.client.KV.Get(ctx, definitionsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list the definitions of custom resources: %w", err)
	}
	groups := map[string]bool{}
	for _, kv := range found.Kvs {
		_, group, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), definitionsPrefix), ".")
		groups[group] = true
	}
	return groups, nil
}

// IsBuiltIn reports whether a group is one that all workspaces serve without a definition.
func IsBuiltIn(group string) bool {
	return group == apiextensionsv1.GroupName || legacyscheme.Scheme.IsGroupRegistered(group)
}

// Of returns the open workspace of a request's context.
func Of(ctx context.Context) *Workspace { return workspaceOf(ctx) }
