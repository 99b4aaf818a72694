package apiserver

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

type impersonatedKey struct{}

// WithImpersonation returns the context of a request with whether it acts as another user. Upstream removes the headers that say so.
func WithImpersonation(ctx context.Context, r *http.Request) context.Context {
	for name := range r.Header {
		if strings.HasPrefix(strings.ToLower(name), "impersonate-") {
			return context.WithValue(ctx, impersonatedKey{}, true)
		}
	}
	return ctx
}

// Impersonated reports whether the user of a request is one that another user acts as. The RBAC of one workspace, or of the root, decides
// about that: its administrator may act as anyone there. So such a user has no permissions in another workspace.
func Impersonated(ctx context.Context) bool {
	is, _ := ctx.Value(impersonatedKey{}).(bool)
	return is
}

// Allows reports whether an authorizer gives the user of a request a verb for a cluster-scoped object.
func Allows(ctx context.Context, by authorizer.Authorizer, verb string, resource schema.GroupVersionResource, name string) (bool, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return false, errors.New("the request has no user: this is a bug, please report it")
	}
	decision, _, err := by.Authorize(ctx, authorizer.AttributesRecord{User: who, Verb: verb, APIGroup: resource.Group, APIVersion: resource.Version,
		Resource: resource.Resource, Name: name, ResourceRequest: true})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}
