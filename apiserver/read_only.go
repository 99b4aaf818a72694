package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

var errReadOnly = errors.New("this server only reads, because it runs with --read-only; start it without that flag to make changes")

// onlyReads refuses every request that would change something, except for the server's own, which complete
// what each workspace has.
func onlyReads(next http.Handler, c *genericapiserver.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, known := request.RequestInfoFrom(r.Context())
		switch {
		case !known, changesNothing(info, r), isServer(r.Context()):
			next.ServeHTTP(w, r)
		case !info.IsResourceRequest:
			http.Error(w, errReadOnly.Error(), http.StatusForbidden)
		default:
			resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
			responsewriters.ErrorNegotiated(apierrors.NewForbidden(resource, info.Name, errReadOnly), c.Serializer,
				schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
		}
	})
}

func changesNothing(info *request.RequestInfo, r *http.Request) bool {
	switch {
	case slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.Method):
		// exec, attach, port-forward and proxy are also requested with GET.
		return !slices.Contains([]string{"exec", "attach", "portforward", "proxy"}, info.Subresource)
	case !info.IsResourceRequest:
		return false
	case info.APIGroup == "authorization.k8s.io", info.APIGroup == "authentication.k8s.io":
		return strings.HasSuffix(info.Resource, "reviews") // they only answer
	}
	return slices.Equal(r.URL.Query()["dryRun"], []string{metav1.DryRunAll})
}

// isServer reports whether a request is the API server's own.
func isServer(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return ok && u.GetName() == user.APIServerUser
}
