package apiserver

import (
	"context"
	"net/http"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"
)

// trustContext authenticates a request by the user in its context. Only code in this
// process can set that: see Server.Handler. It is the first authenticator, so that no
// credentials in the request are considered.
func trustContext(c *genericapiserver.Config) {
	c.Authentication.Authenticator = union.NewFailOnError(authenticator.RequestFunc(userInContext), c.Authentication.Authenticator)
}

func userInContext(req *http.Request) (*authenticator.Response, bool, error) {
	who, ok := request.UserFrom(req.Context())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: who}, true, nil
}

// cacheCertificates avoids verifying a client certificate for every request. Call it
// before any authenticator is added that looks at more of a request than its
// credentials.
func cacheCertificates(c *genericapiserver.Config) {
	if c.Authentication.RequestHeaderConfig != nil {
		return // headers determine the user of a front proxy's certificate
	}
	c.Authentication.Authenticator = newCertificateCache(c.Authentication.Authenticator, clock.RealClock{})
}

// allowAnonymousHealth lets load balancers and probes check the server's health without
// credentials. Every other request without credentials is 401. Upstream's default would
// make it anonymous and leave the decision to RBAC.
func allowAnonymousHealth(c *genericapiserver.Config) {
	c.Authentication.Authenticator = union.NewFailOnError(
		c.Authentication.Authenticator,
		anonymous.NewAuthenticator([]apiserver.AnonymousAuthCondition{
			{Path: "/healthz"}, {Path: "/livez"}, {Path: "/readyz"},
		}),
	)
}

// boundObjects looks up the objects that service-account tokens are bound to. A
// workspace runs no Pods and has no kubelets. So a token that claims to be bound to a
// Pod or a Node was not issued here and is rejected.
//
// The caches may not have an account yet that was created a moment ago, here or on
// another server. So a miss is read from the API.
type boundObjects struct {
	secrets         corelisters.SecretLister
	serviceAccounts corelisters.ServiceAccountLister
	// client of this server; it does not authenticate with such a token.
	client clientset.Interface
}

// cached is an OptionalTokenGetter.
func (b *boundObjects) cached(factory informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
	b.secrets = factory.Core().V1().Secrets().Lister()
	b.serviceAccounts = factory.Core().V1().ServiceAccounts().Lister()
	return b
}

func (b *boundObjects) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	if account, err := b.serviceAccounts.ServiceAccounts(namespace).Get(name); err == nil {
		return account, nil
	}
	return b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (b *boundObjects) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	if secret, err := b.secrets.Secrets(namespace).Get(name); err == nil {
		return secret, nil
	}
	return b.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (b *boundObjects) GetPod(_ context.Context, _, name string) (*v1.Pod, error) {
	return nil, apierrors.NewNotFound(v1.Resource("pods"), name)
}

func (b *boundObjects) GetNode(_ context.Context, name string) (*v1.Node, error) {
	return nil, apierrors.NewNotFound(v1.Resource("nodes"), name)
}
