package workspaces

import (
	"context"
	"fmt"
	"net/http"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	clusterrolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	rolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// audience is that of the service-account tokens of all workspaces. It need not differ between them, because their issuers do.
const audience = "https://workspaces.atoll.internal"

// issuer returns the issuer of a workspace's service-account tokens. No other workspace accepts them, also none that gets the same
// path later.
func issuer(uid string) string { return "https://" + uid + ".workspaces.atoll.internal" }

// secretIssuer returns the issuer of a workspace's tokens in Secrets.
func secretIssuer(uid string) string { return issuer(uid) + "/secrets" }

// credentials authenticate the users of all workspaces. People have the same certificates everywhere; accounts belong to one
// workspace.
type credentials struct {
	key any // private
	// keys verify the tokens.
	keys     serviceaccount.PublicKeysGetter
	accounts accounts
	// chain makes the client that records when tokens in Secrets are used.
	chain *chain
}

func newCredentials(keyFile string) (*credentials, error) {
	key, err := keyutil.PrivateKeyFromFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the service-account key: %w", err)
	}
	keys, err := serviceaccount.StaticPublicKeysGetter([]any{key})
	if err != nil {
		return nil, fmt.Errorf("read the service-account key: %w", err)
	}
	return &credentials{key: key, keys: keys}, nil
}

// requests returns the authenticator of requests. It fails for one without a workspace.
func (c *credentials) requests(people authenticator.Request) authenticator.Request {
	all := group.NewAuthenticatedGroupAdder(union.New(people, bearertoken.New(c), websocket.NewProtocolAuthenticator(c)))
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if workspaceOf(r.Context()) == nil {
			return nil, false, errNoWorkspace
		}
		// Only code of this process can set it: see apiserver.Server.Handler.
		if trusted, ok := request.UserFrom(r.Context()); ok {
			return &authenticator.Response{User: trusted}, true, nil
		}
		response, ok, err := all.AuthenticateRequest(r)
		if ok && err == nil && response.User.GetName() == ServerUser {
			return nil, false, nil // no client is the server
		}
		return response, ok, err
	})
}

// AuthenticateToken implements authenticator.Token: the token of an account of the request's workspace.
func (c *credentials) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	t, err := c.tokensOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return t.authenticator.AuthenticateToken(ctx, token)
}

// GenerateToken implements serviceaccount.TokenGenerator: a token of the request's workspace.
func (c *credentials) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	t, err := c.tokensOf(ctx)
	if err != nil {
		return "", err
	}
	return t.generator.GenerateToken(ctx, claims, private)
}

func (c *credentials) tokensOf(ctx context.Context) (tokens, error) {
	w := workspaceOf(ctx)
	if w == nil {
		return tokens{}, errNoWorkspace
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tokens.generator == nil {
		generator, err := serviceaccount.JWTTokenGenerator(issuer(w.issuedBy), c.key)
		if err != nil {
			return tokens{}, fmt.Errorf("prepare to sign service-account tokens: %w", err)
		}
		inSecrets, err := serviceaccount.JWTTokenGenerator(secretIssuer(w.issuedBy), c.key)
		if err != nil {
			return tokens{}, fmt.Errorf("prepare to sign tokens in Secrets: %w", err)
		}
		validator, err := serviceaccount.NewLegacyValidator(true, &c.accounts, usedSecrets{c.chain, w})
		if err != nil {
			return tokens{}, fmt.Errorf("prepare to verify tokens in Secrets: %w", err)
		}
		audiences := authenticator.Audiences{audience}
		w.tokens = tokens{generator, inSecrets, tokenunion.New(
			serviceaccount.JWTTokenAuthenticator([]string{issuer(w.issuedBy)}, c.keys, audiences, serviceaccount.NewValidator(&c.accounts)),
			serviceaccount.JWTTokenAuthenticator([]string{secretIssuer(w.issuedBy)}, c.keys, audiences, validator))}
	}
	return w.tokens, nil
}

// accounts reads what tokens are bound to, from the workspace of the request. A workspace runs no pods and has no nodes: a token
// that claims to be bound to one was not issued here.
type accounts struct{ serviceAccounts, secrets rest.Getter }

func (a *accounts) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	out := &corev1.ServiceAccount{}
	return out, read(ctx, a.serviceAccounts, namespace, name, out)
}

func (a *accounts) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	out := &corev1.Secret{}
	return out, read(ctx, a.secrets, namespace, name, out)
}

func (*accounts) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}

func (*accounts) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

func read(ctx context.Context, from rest.Getter, namespace, name string, out runtime.Object) error {
	found, err := from.Get(request.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	return legacyscheme.Scheme.Convert(found, out, nil)
}

// newAuthorizer returns RBAC that reads the roles and bindings of the request's workspace, until ctx ends.
func newAuthorizer(ctx context.Context, opts generic.RESTOptionsGetter) (authorizer.Authorizer, authorizer.RuleResolver, error) {
	roles, err := rolestore.NewREST(opts)
	if err != nil {
		return nil, nil, err
	}
	bindings, err := rolebindingstore.NewREST(opts)
	if err != nil {
		return nil, nil, err
	}
	clusterRoles, err := clusterrolestore.NewREST(opts)
	if err != nil {
		return nil, nil, err
	}
	clusterBindings, err := clusterrolebindingstore.NewREST(opts)
	if err != nil {
		return nil, nil, err
	}
	rules := rbac.New(
		role.AuthorizerAdapter{Registry: role.NewRegistry(roles)},
		rolebinding.AuthorizerAdapter{Registry: rolebinding.NewRegistry(bindings)},
		clusterrole.AuthorizerAdapter{Registry: clusterrole.NewRegistry(clusterRoles)},
		clusterrolebinding.AuthorizerAdapter{Registry: clusterrolebinding.NewRegistry(clusterBindings)},
	)
	for _, opened := range []rest.Storage{roles, bindings, clusterRoles, clusterBindings} {
		context.AfterFunc(ctx, opened.Destroy)
	}
	return authorizerunion.New(authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), rules), rules, nil
}
