package apiserver

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// WorkspacesPrefix is the path below which further workspaces are served; workspaces.Prefix is the same.
const WorkspacesPrefix = "/clusters/"

// ForWorkspaces is what the server of further workspaces shares with this one.
type ForWorkspaces struct {
	// People authenticates the users who are the same in all workspaces.
	People authenticator.Request
	// Transformer encrypts the stored objects of a resource.
	Transformer func(schema.GroupResource) value.Transformer
	// AuditBackend and AuditPolicy record requests; nil if none are recorded.
	AuditBackend audit.Backend
	AuditPolicy  audit.PolicyRuleEvaluator
	// Authenticator and Authorizer are those of this server, for requests to it that the other one serves.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Allows reports whether the user of a request to this server has a verb for an object.
	Allows func(ctx context.Context, verb string, resource schema.GroupVersionResource, name string) (bool, error)
}

// ownIdentities are prefixes of users that exist in one workspace alone, or are the server's. No certificate, and no token of this workspace, makes a user
// with such a name in another one.
var ownIdentities = []string{"system:serviceaccount:", "system:bootstrap:", "system:node:", ViewUsers, tenancyv1alpha1.PlacementUsers}

// ViewUsers begins the names of users who stand for the exporter of an API in its consumers. No client is one.
const ViewUsers = "system:apiexport:"

// people authenticates like this server, but accepts none of its own accounts.
func people(all authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := all.AuthenticateRequest(r)
		if !ok || err != nil {
			return response, ok, err
		}
		for _, prefix := range ownIdentities {
			if strings.HasPrefix(response.User.GetName(), prefix) {
				return nil, false, nil
			}
		}
		return response, true, nil
	})
}

// forOwn authenticates requests to this server that another chain serves, which has other audiences.
func forOwn(generic *genericapiserver.Config) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		audiences := generic.Authentication.APIAudiences
		response, ok, err := generic.Authentication.Authenticator.AuthenticateRequest(r.WithContext(authenticator.WithAudiences(r.Context(), audiences)))
		if !ok || err != nil {
			return response, ok, err
		}
		if len(response.Audiences) > 0 && len(audiences.Intersect(response.Audiences)) == 0 {
			return nil, false, nil
		}
		return &authenticator.Response{User: response.User}, true, nil
	})
}

type impersonatedKey struct{}

// MarkImpersonation returns the context of a request, which knows whether the request acts as another user. The RBAC of its workspace
// decides about that.
func MarkImpersonation(ctx context.Context, r *http.Request) context.Context {
	for name := range r.Header {
		if strings.HasPrefix(strings.ToLower(name), "impersonate-") {
			return context.WithValue(ctx, impersonatedKey{}, true)
		}
	}
	return ctx
}

// Impersonated reports whether the user of a request is one that another user acts as. An administrator of one workspace may act as
// anyone there, so such a user has no permissions in another workspace.
func Impersonated(ctx context.Context) bool { return ctx.Value(impersonatedKey{}) != nil }

// withWorkspaces sends the requests below WorkspacesPrefix to their handler, before the chain of this workspace sees them.
func withWorkspaces(cfg Config, generic *genericapiserver.Config, storage *keyspaceStorage) error {
	if cfg.Workspaces == nil {
		return nil
	}
	workspaces, err := cfg.Workspaces(ForWorkspaces{People: people(generic.Authentication.Authenticator), Transformer: storage.encryption.transformer,
		AuditBackend: generic.AuditBackend, AuditPolicy: generic.AuditPolicyRuleEvaluator,
		Authenticator: forOwn(generic), Authorizer: authorizer.AuthorizerFunc(func(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
			return generic.Authorization.Authorizer.Authorize(ctx, of) // other authorizers are added after this
		}),
		Allows: func(ctx context.Context, verb string, resource schema.GroupVersionResource, name string) (bool, error) {
			return Allows(ctx, generic.Authorization.Authorizer, verb, resource, name) // other authorizers are added after this
		}})
	if err != nil {
		return err
	}
	build := generic.BuildHandlerChainFunc
	generic.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		own := build(h, c)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, WorkspacesPrefix) {
				workspaces.ServeHTTP(w, r)
				return
			}
			own.ServeHTTP(w, r.WithContext(MarkImpersonation(r.Context(), r)))
		})
	}
	return nil
}
