package apiserver

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Service is served under a path of its own beside the Kubernetes-style API, behind the
// same authentication, authorization (of the path, as RBAC's nonResourceURLs has it),
// flow control and audit.
type Service struct {
	// Prefix of its paths; it ends in a slash. Paths come as they were sent: not cleaned.
	Prefix string
	// Allows tells whether somebody may have a path whom RBAC does not allow it.
	Allows func(user User, path string) bool
	// Watches tells whether a request may last; others are bounded to a minute.
	Watches func(*http.Request) bool
	// Serve answers a request of somebody who is allowed its path.
	Serve func(http.ResponseWriter, *http.Request, User)
}

// User is who sends a request.
type User struct {
	Name   string
	Groups []string
}

// ServeHTTP implements http.Handler, at the end of the chain.
func (s Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		// The chain has refused whoever it does not know; this would be a mistake of ours.
		http.Error(w, "nobody knows who asks", http.StatusUnauthorized)
		return
	}
	s.Serve(w, r, User{who.GetName(), who.GetGroups()})
}

// Authorize implements authorizer.Authorizer. It never denies: RBAC may allow.
func (s Service) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.IsResourceRequest() || a.GetUser() == nil || !strings.HasPrefix(a.GetPath(), s.Prefix) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if s.Allows(User{a.GetUser().GetName(), a.GetUser().GetGroups()}, a.GetPath()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// admitServices has the chain let through what services serve.
func admitServices(c *genericapiserver.Config, services []Service) {
	for _, service := range services {
		c.Authorization.Authorizer = authorizerunion.New(c.Authorization.Authorizer, service)
		others := c.LongRunningFunc
		c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
			return strings.HasPrefix(r.URL.Path, service.Prefix) && service.Watches(r) || others(r, info)
		}
	}
}
