package apiserver

import (
	"net/http"
	"slices"
	"strings"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Subresource is a subresource that Atoll adds to a custom resource. Users need permission
// for the verb on RESOURCE/NAME.
type Subresource struct {
	Resource schema.GroupVersionResource
	Name     string
	// ClusterScoped is set if the resource is cluster-scoped.
	ClusterScoped bool
	// Kind of the response, for discovery.
	Kind string
	// Verbs are those that are served. None means get.
	Verbs []string
	// Below is set if all paths below the subresource are served, too.
	Below bool
	// LongRunning reports whether a request may run for long; others are limited to a
	// minute.
	LongRunning func(*http.Request) bool
	// Serve answers an authorized request. It has to check whether the object exists.
	Serve func(w http.ResponseWriter, r *http.Request, namespace, name string, user User)
}

// subresources are served in front of custom resources, whose server supports only
// status and scale. Requests have passed the whole chain: authentication,
// authorization, audit, flow control.
type subresources struct {
	all  []Subresource
	next http.Handler
}

// WithSubresources serves the subresources, and adds them to the discovery of their versions. All other requests go to next.
func WithSubresources(all []Subresource, next http.Handler) http.Handler {
	return subresources{all, next}
}

// subresourceTarget is the server of custom resources with subresources in front.
type subresourceTarget struct {
	genericapiserver.DelegationTarget
	all []Subresource
}

// UnprotectedHandler implements genericapiserver.DelegationTarget.
func (b subresourceTarget) UnprotectedHandler() http.Handler {
	return subresources{b.all, b.DelegationTarget.UnprotectedHandler()}
}

// ServeHTTP implements http.Handler.
func (s subresources) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	switch {
	case !ok:
		s.next.ServeHTTP(w, r)
	case info.IsResourceRequest && info.Subresource != "":
		s.serve(w, r, info)
	case !info.IsResourceRequest && s.extends(info.Path):
		s.serveDiscovery(w, r, info.Path)
	default:
		s.next.ServeHTTP(w, r)
	}
}

func (s subresources) serve(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	sub, ok := s.find(info)
	if !ok {
		s.next.ServeHTTP(w, r)
		return
	}
	refuse := func(err error) {
		responsewriters.ErrorNegotiated(err, apiextensionsapiserver.Codecs, sub.Resource.GroupVersion(), w, r)
	}
	who, known := request.UserFrom(r.Context())
	switch {
	case len(info.Parts) != 3 && !sub.Below || (info.Namespace == "") != sub.ClusterScoped:
		refuse(apierrors.NewNotFound(sub.Resource.GroupResource(), strings.Join(info.Parts[1:], "/")))
	case !slices.Contains(sub.verbs(), info.Verb):
		refuse(apierrors.NewMethodNotSupported(schema.GroupResource{Group: sub.Resource.Group, Resource: sub.path()}, info.Verb))
	case !known:
		// The chain rejects unauthenticated requests; getting here is a bug.
		refuse(apierrors.NewUnauthorized("the request has no authenticated user"))
	default:
		handler := func(w http.ResponseWriter, r *http.Request) {
			sub.Serve(w, r, info.Namespace, info.Name, User{who.GetName(), who.GetGroups()})
		}
		metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, info.Subresource,
			metrics.CleanScope(info), metrics.APIServerComponent, false, "", handler)(w, r)
	}
}

func (s subresources) find(info *request.RequestInfo) (none Subresource, ok bool) {
	for _, sub := range s.all {
		if info.Resource == sub.Resource.Resource && info.Subresource == sub.Name &&
			info.APIGroup == sub.Resource.Group && info.APIVersion == sub.Resource.Version {
			return sub, true
		}
	}
	return none, false
}

// verbs returns the verbs that are served.
func (s Subresource) verbs() []string {
	if s.Verbs == nil {
		return []string{"get"}
	}
	return s.Verbs
}

// path is the name in RBAC and discovery.
func (s Subresource) path() string { return s.Resource.Resource + "/" + s.Name }

// AdmitLongRunning makes the chain treat the subresources' long-running requests as
// such.
func AdmitLongRunning(c *genericapiserver.Config, all []Subresource) {
	if len(all) == 0 {
		return
	}
	others := c.LongRunningFunc
	c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		if info.IsResourceRequest && info.Subresource != "" {
			if sub, ok := (subresources{all: all}).find(info); ok {
				return sub.LongRunning(r)
			}
		}
		return others(r, info)
	}
}
