package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Service is served at its own path beside the Kubernetes-style API, behind the same
// authentication, authorization (of the path, as with RBAC's nonResourceURLs), flow
// control and audit.
type Service struct {
	// Prefix of the service's paths; it ends in a slash. Paths are passed as sent,
	// without cleaning.
	Prefix string
	// Allows reports whether a user may access a path that RBAC does not allow.
	Allows func(user User, path string) bool
	// LongRunning reports whether a request may run for long; others are limited to a
	// minute.
	LongRunning func(*http.Request) bool
	// Serve answers an authorized request.
	Serve func(http.ResponseWriter, *http.Request, User)
}

// User is the user who sent a request.
type User struct {
	Name   string
	Groups []string
}

// LoggedIn reports whether the user is known, unlike system:anonymous.
func (u User) LoggedIn() bool { return slices.Contains(u.Groups, user.AllAuthenticated) }

// ServeHTTP implements http.Handler, at the end of the chain.
func (s Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		// The chain rejects unauthenticated requests; getting here is a bug.
		http.Error(w, "the request has no authenticated user", http.StatusUnauthorized)
		return
	}
	s.Serve(w, r, User{who.GetName(), who.GetGroups()})
}

// Authorize implements authorizer.Authorizer. It never denies, because RBAC may allow.
func (s Service) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.IsResourceRequest() || a.GetUser() == nil || !strings.HasPrefix(a.GetPath(), s.Prefix) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if s.Allows(User{a.GetUser().GetName(), a.GetUser().GetGroups()}, a.GetPath()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// admitServices makes the chain let the services' requests through.
func admitServices(c *genericapiserver.Config, services []Service) {
	for _, service := range services {
		c.Authorization.Authorizer = authorizerunion.New(c.Authorization.Authorizer, service)
		others := c.LongRunningFunc
		c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
			return strings.HasPrefix(r.URL.Path, service.Prefix) && service.LongRunning(r) || others(r, info)
		}
	}
}
