package workspaces

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/openapi"
	clientset "k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/utils/lru"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/apiserver/turns"
)

// eventTTL is how long events are kept, as in kube-apiserver.
const eventTTL = time.Hour

// chain has what upstream needs to build a server.
type chain struct {
	generic   *genericapiserver.Config
	resources *serverstorage.ResourceConfig
	factory   *serverstorage.DefaultStorageFactory
	encoder   *overlay.Encoder
	// client is for upstream's code that wants one. It cannot know the workspace of a request, and so reaches none.
	client clientset.Interface
	// handler is set by build.
	handler http.Handler

	etcd        *serveroptions.EtcdOptions
	transformer func(schema.GroupResource) value.Transformer
	quotas      *quotas
	outgoing    outgoing
	// rootCA is Config.RootCA.
	rootCA []byte
	// servers is how many servers may serve a workspace; upstream only asks whether there is more than one.
	servers  int
	bindings func(context.Context, *Workspace) ([]Binding, error)
	// open, confirm and exports are those of Config.
	open    func(context.Context, string) (context.Context, *Workspace, func(), error)
	confirm func(ctx context.Context, path, uid string) error
	exports func(context.Context, *Workspace, string) ([]schema.GroupResource, error)
	// elsewhere, root and definitions are those of Config.
	elsewhere   func(context.Context, string, *Workspace) (apiserver.Elsewhere, func(), error)
	root        *Root
	definitions func(context.Context) (*Workspace, error)
	// legacyGroups has the discovery of the core group.
	legacyGroups aggregated.ResourceManager
	// announced are the groups that all workspaces are bound to, and installed the built-in ones.
	announced, installed sets.Set[string]
	// reservations are those of Config.
	reservations map[schema.GroupResource]amountsOf
	// kindsDomain is that of Config.
	kindsDomain string
	log         *slog.Logger
	// builtInSpec is the OpenAPI document, version 2, of the built-in kinds; specs are those of workspaces, by their definitions.
	builtInSpec *spec.Swagger
	specs       *lru.Cache
}

func newChain(cfg Config) (*chain, error) {
	registry, err := apiserver.ComponentVersions()
	if err != nil {
		return nil, err
	}
	c := &chain{generic: genericapiserver.NewConfig(legacyscheme.Codecs), resources: served(cfg), transformer: cfg.Transformer, rootCA: cfg.RootCA, servers: 1, outgoing: outgoing{cfg.WebhookNetworks},
		specs: lru.New(specsKept), bindings: cfg.Bindings, open: cfg.Open, confirm: cfg.Confirm, exports: cfg.Exports, elsewhere: cfg.Elsewhere, root: cfg.Root, definitions: cfg.Definitions,
		announced: sets.New[string](), installed: sets.New[string](), reservations: cfg.Reservations, kindsDomain: cfg.KindsDomain, log: cfg.Log}
	if cfg.Shared {
		c.servers = 2
	}
	g := c.generic
	g.EffectiveVersion = registry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	g.MergedResourceConfig = c.resources
	g.ExternalAddress = "workspaces.atoll.internal:443" // only in documents that no client reads
	g.EnableProfiling, g.EnableMetrics = false, false   // of the whole process: the server has them
	g.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	g.LoopbackClientConfig = &clientrest.Config{Host: "https://workspaces.atoll.internal", Transport: unreachable{}}
	g.AuditBackend, g.AuditPolicyRuleEvaluator = cfg.AuditBackend, cfg.AuditPolicy
	if c.quotas, err = newQuotas(c, cfg.Log); err != nil {
		return nil, err
	}
	flows, err := newFlows(cfg.flows)
	if err != nil {
		return nil, err
	}
	g.FlowControl = flows
	chain := c
	g.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		h = withHealth(chain.withAbsences(h))
		h = chain.withTrees(h, chain.withViews(withDue(withCharges(turns.With(chain.withCustomDiscovery(h), turnsOf)))))
		ofViews := *c
		ofViews.Authorization.Authorizer = treeAuthorizer{viewAuthorizer{c.Authorization.Authorizer}, cfg.Root}
		return genericapiserver.DefaultBuildHandlerChain(annotated(flows.boundWatches(chain.withElsewhere(apiserver.RefusePodWatch(h, c, apiserver.NoMembersInWorkspace)), c.LongRunningFunc)), &ofViews)
	}
	g.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme)
	g.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	g.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	g.OpenAPIConfig.Info.Title, g.OpenAPIV3Config.Info.Title = "Kubernetes", "Kubernetes"
	if c.client, err = clientset.NewForConfig(g.LoopbackClientConfig); err != nil {
		return nil, err
	}
	return c, c.openStorage(cfg)
}

// annotated records the workspace of a request in its audit event.
func annotated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, ok := r.Context().Value(pathKey{}).(string); ok {
			audit.AddAuditAnnotation(r.Context(), WorkspaceAnnotation, path)
		}
		next.ServeHTTP(w, r)
	})
}

// unreachable is the transport of a client that must not be used.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoWorkspace }

// openStorage decides how objects are encoded and under which keys, as upstream does.
func (c *chain) openStorage(cfg Config) (err error) {
	etcd := serveroptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	etcd.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	etcd.StorageConfig.Transport.ServerList = []string{"in-process"} // required; never dialled
	etcd.SkipHealthEndpoints, etcd.EnableWatchCache = true, false
	factory := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.generic.EffectiveVersion)
	factory.APIResourceConfig = c.resources
	factory.DefaultResourceEncoding.SetEffectiveVersion(c.generic.EffectiveVersion)
	if c.factory, err = factory.Complete(etcd).New(); err != nil {
		return fmt.Errorf("configure the storage: %w", err)
	}
	c.etcd = etcd
	c.encoder = &overlay.Encoder{Factory: c.factory, Transformer: cfg.Transformer, RootCA: cfg.RootCA}
	c.generic.RESTOptionsGetter = options{upstream: etcd.CreateRESTOptionsGetter(c.factory, nil), transformer: cfg.Transformer, of: workspaceOf, client: c.encoder.WithCompanions, quotas: c.quotas}
	return nil
}

// notServed are the resources of the core group that workspaces do not have: see Absences.
var notServed = sets.New("nodes", "nodes/status", "nodes/proxy")

// served returns the resources that workspaces have.
func served(cfg Config) *serverstorage.ResourceConfig {
	rc := apiserver.ResourceConfig(cfg.WorkloadAPIs)
	rc.DisableVersions(resourcev1.SchemeGroupVersion)
	return rc
}

// core returns the provider of the core group.
func (c *chain) core(cfg Config, users *credentials) controlplaneapiserver.RESTStorageProvider {
	core := &corerest.GenericConfig{
		StorageFactory:              c.factory,
		EventTTL:                    eventTTL,
		LoopbackClientConfig:        c.generic.LoopbackClientConfig,
		ServiceAccountIssuer:        users,
		ServiceAccountMaxExpiration: cfg.MaxTokenAge,
		APIAudiences:                c.generic.Authentication.APIAudiences,
	}
	if !cfg.WorkloadAPIs {
		return without{core, notServed}
	}
	return withEvictions{without{apiserver.CoreProvider(core, c.generic.Authorization.Authorizer, c.client), notServed}, c}
}

// providers returns those of all groups, in the order of discovery.
func (c *chain) providers(cfg Config, core controlplaneapiserver.RESTStorageProvider) []controlplaneapiserver.RESTStorageProvider {
	authorizer := c.generic.Authorization.Authorizer
	all := []controlplaneapiserver.RESTStorageProvider{
		core,
		without{authenticationrest.RESTStorageProvider{}, sets.New("tokenreviews")},
		authorizationrest.RESTStorageProvider{Authorizer: authorizer, RuleResolver: c.generic.RuleResolver},
		coordinationrest.RESTStorageProvider{},
		rbacrest.RESTStorageProvider{Authorizer: authorizer},
		admissionregistrationrest.RESTStorageProvider{Authorizer: authorizer, DiscoveryClient: c.client.Discovery()},
		eventsrest.RESTStorageProvider{TTL: eventTTL},
	}
	if cfg.WorkloadAPIs {
		all = append(all, apiserver.WorkloadProviders(authorizer, c.client)...)
	}
	for _, provider := range all {
		c.installed.Insert(provider.GroupName())
	}
	return all
}

// without is a provider without some of its resources.
type without struct {
	controlplaneapiserver.RESTStorageProvider
	omitted sets.Set[string]
}

func (p without) NewRESTStorage(rc serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(rc, opts)
	for _, resources := range info.VersionedResourcesStorageMap {
		for path, storage := range resources {
			if p.omitted.Has(path) {
				storage.Destroy()
				delete(resources, path)
			}
		}
	}
	return info, err
}

// capture remembers the storage that a provider of the core group opens: the chain reads some of it itself.
type capture struct {
	controlplaneapiserver.RESTStorageProvider
	opened map[string]rest.Storage
}

func (p *capture) NewRESTStorage(rc serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(rc, opts)
	p.opened = info.VersionedResourcesStorageMap["v1"]
	return info, err
}

func (p *capture) getter(resource string) rest.Getter { return p.opened[resource].(rest.Getter) }
