package apiserver

import (
	"fmt"
	"net/http"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const proxySubresource = "proxy"

// clusterProxy is the subresource of Clusters below which the APIs of the member clusters are. Its verbs are those of the
// methods of requests, as for the proxy of upstream's nodes.
func clusterProxy(elsewhere Elsewhere, authorize authorizer.Authorizer) Subresource {
	return Subresource{
		Resource: v1alpha1.ClusterResource, Name: proxySubresource, Kind: "ClusterProxyOptions", ClusterScoped: true,
		Verbs: []string{"get", "create", "update", "patch", "delete"}, Below: true,
		LongRunning: func(*http.Request) bool { return true }, // watches, and connections into containers
		Serve: func(w http.ResponseWriter, r *http.Request, _, name string, _ User) {
			h, err := connectCluster(r, elsewhere, authorize, name)
			if err != nil {
				proxyRefusal{}.Error(w, r, err)
				return
			}
			h.ServeHTTP(w, r)
		},
	}
}

// connectCluster returns the handler of a request to a cluster. A connection that changes its protocol requires the right to
// create: a WebSocket into a container begins with a GET, which is authorized as get.
func connectCluster(r *http.Request, elsewhere Elsewhere, authorize authorizer.Authorizer, name string) (http.Handler, error) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("connect to cluster %s: the request has no information", name))
	}
	if httpstream.IsUpgradeRequest(r) {
		if err := mayCreate(r.Context(), authorize, info); err != nil {
			return nil, err
		}
	}
	return elsewhere.ConnectCluster(r.Context(), name, pathAfter(info, proxySubresource), proxyRefusal{})
}

// proxyRefusal answers a request to a cluster with a Status.
type proxyRefusal struct{}

func (proxyRefusal) Error(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, apiextensionsapiserver.Codecs, v1alpha1.ClusterResource.GroupVersion(), w, r)
}
