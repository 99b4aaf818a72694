// Package workspaces serves any number of workspaces by one chain of handlers. Each has a keyspace of its own. The chain has no
// keyspace: a request brings its workspace in its context, and a call without one fails.
//
// An idle workspace costs little: it has no watch caches, no controllers and no goroutines. A server of custom resources and controllers
// run only where and while they are needed. DESIGN.md explains what that
// means for each part of upstream's chain.
package workspaces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/apiserver/turns"
	"github.com/atoll-dev/atoll/kv"
)

// Config configures a Server.
type Config struct {
	// Open returns the workspace with that path, open, for one request, and the context of that request: it ends when the workspace
	// is being deleted. release is called when the request is over.
	// Errors: ErrNotFound.
	Open func(ctx context.Context, path string) (in context.Context, w *Workspace, release func(), err error)
	// People authenticates users who are the same in all workspaces, such as those with a client certificate.
	People authenticator.Request
	// ServiceAccountKeyFile has the private key (PEM) that signs service-account tokens.
	ServiceAccountKeyFile string
	// RootCA has the certificates (PEM) by which clients verify this server. Each namespace has them in a ConfigMap; none if it is nil.
	RootCA []byte
	// MaxTokenAge is the longest time for which a token is issued; 0 is no limit.
	MaxTokenAge time.Duration
	// Shared is set if other servers may serve the same workspaces at the same time.
	Shared bool
	// WorkloadAPIs serves the built-in workload kinds too.
	WorkloadAPIs bool
	// Transformer encrypts the stored objects of a resource; nil encrypts nothing.
	Transformer func(schema.GroupResource) value.Transformer
	// AuditBackend and AuditPolicy record requests; nil records none. Events have the annotation WorkspaceAnnotation.
	AuditBackend audit.Backend
	AuditPolicy  audit.PolicyRuleEvaluator
	// Bindings returns the bindings of a workspace. The context is that of a request to it. nil stands for none.
	Bindings func(ctx context.Context, consumer *Workspace) ([]Binding, error)
	// Confirm returns ErrNotFound if the workspace with that path and UID is gone for good. nil stands for one that confirms all.
	Confirm func(ctx context.Context, path, uid string) error
	// Exports returns the resources of an APIExport of a workspace now. nil stands for none.
	// Errors: ErrNotFound.
	Exports func(ctx context.Context, exporter *Workspace, name string) ([]schema.GroupResource, error)
	// Root is what the tree of all workspaces needs of the root. Without it, there is no such tree.
	Root *Root
	// Definitions returns the open workspace that has the definitions of System. It stays open. nil stands for none.
	// Errors: ErrNotFound.
	Definitions func(context.Context) (*Workspace, error)
	// System are CustomResourceDefinitions (YAML) that all workspaces are bound to. Discovery has them without a call of Bindings.
	System [][]byte
	// ClusterRoles are those that workspaces have in addition to Kubernetes' own.
	ClusterRoles []rbacv1.ClusterRole
	// WebhookNetworks are those that webhooks of workspaces may be in; none stands for all but loopback and link-local addresses.
	WebhookNetworks []netip.Prefix
	// Admission sets and checks fields of custom resources.
	Admission []apiserver.AdmissionStep
	// Subresources are served in addition to those of custom resources. Each checks whether its workspace has the kind from the server.
	Subresources []apiserver.Subresource
	// ObserveLabel observes the changes of objects with a label, in all workspaces; nil observes none.
	ObserveLabel *apiserver.LabelObserver
	// KeepNamespace returns why a namespace of the request's workspace must not be deleted, "" if it may be. nil stands for one that permits all.
	KeepNamespace func(ctx context.Context, namespace string) (reason string, err error)
	// Elsewhere returns access, for one request, to the pods of a workspace's objects that run in clusters, and to their events; nil if there is none. release is called
	// when the request is over.
	Elsewhere func(ctx context.Context, path string, w *Workspace) (elsewhere apiserver.Elsewhere, release func(), err error)
	// KindsDomain is the domain of the groups of Kinds: no workspace defines kinds in groups below it. "" stands for no such groups.
	KindsDomain string
	// Reservations return, for an object of a custom resource that is cluster-scoped, the part of the limits of its workspace that it takes
	// for something outside of it. Only one resource may be in the map: entries are by name.
	Reservations map[schema.GroupResource]func(runtime.Object) (kv.Usage, error)
	// Log is slog.Default if nil.
	Log *slog.Logger

	flows flowLimits // defaultFlowLimits if zero
}

// WorkspaceAnnotation is the annotation of an audit event that has the path of the workspace. The URI of the event begins below it.
const WorkspaceAnnotation = tenancyv1alpha1.WorkspaceAnnotation

// Server serves all workspaces. It is an http.Handler for the paths below Prefix.
type Server struct {
	config Config
	users  *credentials
	// root stands for the root in requests to all workspaces below it. It has no keyspace.
	root *Workspace
	// built builds the chain once, for Prepare or the first request to a workspace: a server without workspaces does not pay for it.
	built func() (*chain, error)
	// base returns the objects that every workspace begins with.
	base func() (*overlay.Base, error)
	end  context.CancelFunc
}

// New returns a server of workspaces. ctx ends its background work, as Close does.
func New(ctx context.Context, cfg Config) (*Server, error) {
	switch {
	case cfg.Open == nil:
		return nil, errors.New("configure the server of workspaces: Open is nil: pass a function that opens a workspace")
	case cfg.People == nil:
		return nil, errors.New("configure the server of workspaces: People is nil: pass an authenticator")
	}
	if cfg.Transformer == nil {
		cfg.Transformer = func(schema.GroupResource) value.Transformer { return identity.NewEncryptCheckTransformer() }
	}
	if cfg.Bindings == nil {
		cfg.Bindings = func(context.Context, *Workspace) ([]Binding, error) { return nil, nil }
	}
	if cfg.Confirm == nil {
		cfg.Confirm = func(context.Context, string, string) error { return nil }
	}
	if cfg.Exports == nil {
		cfg.Exports = func(context.Context, *Workspace, string) ([]schema.GroupResource, error) { return nil, ErrNotFound }
	}
	if cfg.Definitions == nil {
		cfg.Definitions = func(context.Context) (*Workspace, error) { return nil, ErrNotFound }
	}
	if cfg.Elsewhere == nil {
		cfg.Elsewhere = func(context.Context, string, *Workspace) (apiserver.Elsewhere, func(), error) {
			return nil, func() {}, nil
		}
	}
	if cfg.KeepNamespace == nil {
		cfg.KeepNamespace = func(context.Context, string) (string, error) { return "", nil }
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.flows == (flowLimits{}) {
		cfg.flows = defaultFlowLimits()
	}
	users, err := newCredentials(cfg.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("configure the server of workspaces: %w", err)
	}
	s := &Server{config: cfg, users: users, root: &Workspace{uid: "root"}}
	ctx, s.end = context.WithCancel(ctx)
	s.built = sync.OnceValues(func() (*chain, error) {
		c, err := newChain(cfg)
		if err == nil {
			err = c.build(ctx, cfg, users)
		}
		if err != nil {
			return nil, fmt.Errorf("build the server of workspaces: %w", err)
		}
		return c, nil
	})
	s.base = sync.OnceValues(func() (*overlay.Base, error) {
		c, err := s.built()
		if err != nil {
			return nil, err
		}
		return c.encoder.NewBase(overlay.Objects(cfg.RootCA, cfg.ClusterRoles))
	})
	return s, nil
}

// Close ends the background work of the chain, when no workspace is open any more. Otherwise it would go on for as long as the process.
func (s *Server) Close() error {
	s.end()
	return nil
}

// Prepare builds what the first request to a workspace would build.
func (s *Server) Prepare() error {
	_, err := s.base()
	return err
}

func (c *chain) build(ctx context.Context, cfg Config, users *credentials) (err error) {
	c.generic.Authentication.APIAudiences = authenticator.Audiences{audience}
	c.generic.Authentication.Authenticator = treeUsers(cfg.Root, users.requests(cfg.People))
	users.chain = c
	if c.generic.Authorization.Authorizer, c.generic.RuleResolver, err = newAuthorizer(ctx, c.generic.RESTOptionsGetter); err != nil {
		return err
	}
	namespaces := &lateGetter{}
	steps, err := apiserver.NewAdmissionSteps(cfg.Admission)
	if err != nil {
		return err
	}
	c.generic.AdmissionControl = admission.NewChainHandler(turns.RulesEnd{}, viewAdmission{}, lifecycle{namespaces}, boundGroups{c}, apiserver.TopLevelItems{}, tokenSecrets{users, cfg.RootCA},
		apiserver.NewNamespaceKeeper(cfg.KeepNamespace), &limitRanges{quotas: c.quotas}, steps, ownAdmission{c}, dueMarker{}, *cmp.Or(cfg.ObserveLabel, &apiserver.LabelObserver{}), c.quotas, turns.RulesBegin{Evaluates: evaluatesExpressions})
	apiserver.AdmitLongRunning(c.generic, cfg.Subresources)

	server, err := c.generic.Complete(nil).New("atoll-workspaces", genericapiserver.NewEmptyDelegateWithCustomHandler(
		apiserver.WithSubresources(cfg.Subresources, http.HandlerFunc(c.serveCustom))))
	if err != nil {
		return err
	}
	c.announceDefinitions(server)
	if err := c.announce(server, cfg.System); err != nil {
		return err
	}
	core := &capture{RESTStorageProvider: c.core(cfg, users)}
	installer := controlplaneapiserver.Server{GenericAPIServer: server, APIResourceConfigSource: c.resources, RESTOptionsGetter: c.generic.RESTOptionsGetter}
	if err := installer.InstallAPIs(c.providers(cfg, core)...); err != nil {
		return err
	}
	c.quotas.opened = core.opened
	namespaces.Getter, users.accounts = core.getter("namespaces"), accounts{core.getter("serviceaccounts"), core.getter("secrets")}
	server.PrepareRun()
	c.legacyGroups = server.AggregatedLegacyDiscoveryGroupManager
	c.builtInSpec = server.StaticOpenAPISpec
	context.AfterFunc(ctx, server.Destroy)
	c.handler = server.Handler
	return nil
}

// lateGetter is set after the storage has been opened, before the first request.
type lateGetter struct{ rest.Getter }
