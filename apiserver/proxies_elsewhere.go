package apiserver

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	noderest "k8s.io/kubernetes/pkg/registry/core/node/rest"
	"k8s.io/kubernetes/pkg/registry/core/service"
)

// serviceProxyElsewhere passes requests for a Service on to a cluster that has it. Upstream's storage has the options and the
// documentation.
type serviceProxyElsewhere struct {
	*service.ProxyREST
	services getter
	through  proxyConnector
}

// Connect returns the handler of a request.
func (s serviceProxyElsewhere) Connect(ctx context.Context, name string, _ runtime.Object, failed rest.Responder) (http.Handler, error) {
	_, own, _, valid := utilnet.SplitSchemeNamePort(name)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q: use NAME, NAME:PORT or SCHEME:NAME:PORT", name))
	}
	if _, err := s.services.Get(ctx, own, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if !reaches(ctx, s.through.elsewhere) {
		return nil, refuseFor(ctx, s.services, "services/proxy", name, NoMembersInWorkspace)
	}
	return s.through.connect(ctx, failed, func(path string, failed proxy.ErrorResponder) (http.Handler, error) {
		return s.through.elsewhere.ConnectService(ctx, request.NamespaceValue(ctx), name, path, failed)
	})
}

// nodeProxyElsewhere passes requests for a node on to its cluster.
type nodeProxyElsewhere struct {
	*noderest.ProxyREST
	through proxyConnector
}

// Connect returns the handler of a request.
func (n nodeProxyElsewhere) Connect(ctx context.Context, name string, _ runtime.Object, failed rest.Responder) (http.Handler, error) {
	return n.through.connect(ctx, failed, func(path string, failed proxy.ErrorResponder) (http.Handler, error) {
		return n.through.elsewhere.ConnectNode(ctx, name, path, failed)
	})
}

// proxyConnector connects to what a cluster proxies.
type proxyConnector struct {
	elsewhere Elsewhere
	authorize authorizer.Authorizer
}

// connect passes the rest of the request's path to a function that returns the handler. A connection that changes its protocol
// requires the right to create: it begins with a GET, which is authorized as get.
func (c proxyConnector) connect(ctx context.Context, failed rest.Responder, to func(string, proxy.ErrorResponder) (http.Handler, error)) (http.Handler, error) {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("connect to a proxy: the request has no information"))
	}
	handler, err := to(pathAfter(info, proxySubresource), proxy.NewErrorResponder(failed))
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpstream.IsUpgradeRequest(r) {
			if err := mayCreate(ctx, c.authorize, info); err != nil {
				failed.Error(err)
				return
			}
		}
		handler.ServeHTTP(w, r)
	}), nil
}
