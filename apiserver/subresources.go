package apiserver

import (
	"net/http"
	"strings"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Subresource is one of our own of a custom resource whose objects are in namespaces. It can be read, by those
// who have the right to get RESOURCE/NAME, and nothing else.
type Subresource struct {
	Resource schema.GroupVersionResource
	Name     string
	// Cluster says that the resource has no namespaces.
	Cluster bool
	// Kind of what is answered, for discovery.
	Kind string
	// Lasts tells whether a request may last; others are bounded to a minute.
	Lasts func(*http.Request) bool
	// Serve answers a request of somebody who may. Whether there is such an object is for it to find out.
	Serve func(w http.ResponseWriter, r *http.Request, namespace, name string, user User)
}

// subresources are served in front of custom resources, whose server knows none but status and scale. The
// whole chain is before them: authentication, authorization, audit, flow control.
type subresources struct {
	all  []Subresource
	next http.Handler
}

// beforeCustom is the server of custom resources with subresources in front.
type beforeCustom struct {
	genericapiserver.DelegationTarget
	all []Subresource
}

// UnprotectedHandler implements genericapiserver.DelegationTarget.
func (b beforeCustom) UnprotectedHandler() http.Handler {
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
	case !info.IsResourceRequest && s.adds(info.Path):
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
	case len(info.Parts) != 3 || (info.Namespace == "") != sub.Cluster:
		refuse(apierrors.NewNotFound(sub.Resource.GroupResource(), strings.Join(info.Parts[1:], "/")))
	case info.Verb != "get":
		refuse(apierrors.NewMethodNotSupported(schema.GroupResource{Group: sub.Resource.Group, Resource: sub.path()}, info.Verb))
	case !known:
		// The chain has refused whoever it does not know; this would be a mistake of ours.
		refuse(apierrors.NewUnauthorized("nobody knows who asks"))
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

// path is how RBAC and discovery call it.
func (s Subresource) path() string { return s.Resource.Resource + "/" + s.Name }

// admitLasting has the chain let those requests last that may.
func admitLasting(c *genericapiserver.Config, all []Subresource) {
	if len(all) == 0 {
		return
	}
	others := c.LongRunningFunc
	c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		if info.IsResourceRequest && info.Subresource != "" {
			if sub, ok := (subresources{all: all}).find(info); ok {
				return sub.Lasts(r)
			}
		}
		return others(r, info)
	}
}
