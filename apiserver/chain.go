package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	clientset "k8s.io/client-go/kubernetes"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// serverName labels upstream's identity leases and metrics.
const serverName = "atoll"

// buildChain creates the three servers that delegate to each other: aggregation first,
// then the built-in kinds, then those defined by CRDs. Kinds without CRDs come last.
//
// The caller must call prepared after the front server has been prepared to run. kinds
// is nil if no kinds without CRDs are configured.
func buildChain(ctx context.Context, cfg Config, storage *keyspaceStorage, types *ownTypes) (front *aggregatorapiserver.APIAggregator, kinds KindServer, prepared func(), err error) {
	tokens := &boundObjects{}
	opts, err := upstreamOptions(ctx, cfg, tokens, storage.reachability.lost)
	if err != nil {
		return nil, nil, nil, err
	}
	ofMetrics, err := metricsScheme()
	if err != nil {
		return nil, nil, nil, err
	}
	generic, informers, storageFactory, err := controlplaneapiserver.BuildGenericConfig(opts,
		[]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme, ofMetrics},
		resourceConfig(cfg), generatedopenapi.GetOpenAPIDefinitions)
	if err != nil {
		return nil, nil, nil, err
	}
	if tokens.client, err = clientset.NewForConfig(generic.LoopbackClientConfig); err != nil {
		return nil, nil, nil, err
	}
	generic.RESTOptionsGetter = storage.options(generic.RESTOptionsGetter)
	if err := storage.encryption.configure(cfg.EncryptionConfigFile, generic); err != nil {
		return nil, nil, nil, err
	}
	if cfg.TracerProvider != nil {
		generic.TracerProvider = borrowedTracing{cfg.TracerProvider}
	}
	// Not part of livez: restarting a server does not bring a database back. A server
	// that has detected data loss in its database would forget it.
	space := &spaceCheck{storage.reachability, storage.client.Lease}
	health := &healthCheck{storage: storage, types: types, space: space}
	generic.AddHealthzChecks(health.check(), space.check())
	generic.AddReadyzChecks(health.check(), space.check(), types.check())
	metricsAPI := &metricsGroup{scheme: ofMetrics}
	if cfg.WorkloadAPIs { // without pods of the core group, kubectl's "pods" would be these
		metricsAPI.elsewhere = cfg.Elsewhere
	}
	filters := generic.BuildHandlerChainFunc
	generic.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		h = metricsAPI.before(h)
		if cfg.WorkloadAPIs && cfg.Elsewhere == nil {
			h = RefusePodWatch(h, c, noMembersHere)
		}
		if cfg.ReadOnly {
			h = onlyReads(h, c)
		}
		return filters(health.explain(h), c)
	}
	cacheCertificates(generic)
	if err := withWorkspaces(cfg, generic, storage); err != nil {
		return nil, nil, nil, err
	}
	allowAnonymousHealth(generic)
	trustContext(generic)
	if cfg.Authorizer != nil {
		generic.Authorization.Authorizer = authorizerunion.New(generic.Authorization.Authorizer, cfg.Authorizer)
	}
	admitServices(generic, cfg.Services)
	if cfg.Elsewhere != nil {
		cfg.Subresources = append(slices.Clone(cfg.Subresources), clusterProxy(cfg.Elsewhere, generic.Authorization.Authorizer))
	}
	AdmitLongRunning(generic, cfg.Subresources)
	// Leases that identify the running servers. Nothing in a workspace reads them, and
	// each costs a durable write every ten seconds.
	generic.DisabledPostStartHooks.Insert(
		"start-kube-apiserver-identity-lease-controller",
		"start-kube-apiserver-identity-lease-garbage-collector",
	)

	serviceResolver := noServices{}
	controlPlane, initializers, err := controlplaneapiserver.CreateConfig(opts, generic, informers, storageFactory, serviceResolver,
		[]admission.PluginInitializer{reachableHooks{informers}})
	if err != nil {
		return nil, nil, nil, err
	}
	servers := 1
	if cfg.Shared {
		servers = 2 // upstream only checks whether there is more than one
	}
	authResolver := webhook.NewDefaultAuthenticationInfoResolverWrapper(controlPlane.ProxyTransport,
		generic.EgressSelector, generic.LoopbackClientConfig, generic.TracerProvider)
	apiExtensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(*generic, informers, initializers, opts,
		servers, serviceResolver, authResolver)
	if err != nil {
		return nil, nil, nil, err
	}
	apiExtensions.GenericConfig.AggregatedDiscoveryGroupManager = withSubresources{apiExtensions.GenericConfig.AggregatedDiscoveryGroupManager, cfg.Subresources}
	apiExtensions.GenericConfig.RESTOptionsGetter = storage.options(apiExtensions.GenericConfig.RESTOptionsGetter)
	apiExtensions.ExtraConfig.CRDRESTOptionsGetter = storage.customOptions(apiExtensions.ExtraConfig.CRDRESTOptionsGetter, cfg.CompactionInterval)

	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(*generic, opts, informers, serviceResolver,
		controlPlane.ProxyTransport, controlPlane.PeerProxy, initializers)
	if err != nil {
		return nil, nil, nil, err
	}
	// This controller would watch Services and EndpointSlices to find the servers
	// behind an APIService, but a workspace does not route to Services.
	aggregator.ExtraConfig.DisableRemoteAvailableConditionController = true
	aggregator.GenericConfig.AggregatedDiscoveryGroupManager = localGroups{aggregator.GenericConfig.AggregatedDiscoveryGroupManager}
	aggregator.GenericConfig.RESTOptionsGetter = storage.options(aggregator.GenericConfig.RESTOptionsGetter)

	// Upstream keeps one such getter per process, and each call above has set it to one
	// that dials etcd. Several workspaces share one database, so the getter that was
	// set last is right for all of them.
	metrics.SetStorageMonitorGetter(func() ([]metrics.Monitor, error) {
		return []metrics.Monitor{storage}, nil
	})

	front, kinds, err = link(cfg, controlPlane, apiExtensions, aggregator, storage, metricsAPI)
	// By then the OpenAPI documents have been built from the definitions. Upstream
	// would keep those, 12 MB of them, for the server's lifetime.
	return front, kinds, func() { generic.OpenAPIV3Config.Definitions = nil }, err
}

// link creates the servers from their configurations, innermost first. Requests for
// resources that none of them serves go to the kinds without CRDs.
func link(
	cfg Config,
	controlPlane *controlplaneapiserver.Config,
	apiExtensions *apiextensionsapiserver.Config,
	aggregator *aggregatorapiserver.Config,
	storage *keyspaceStorage,
	metricsAPI *metricsGroup,
) (*aggregatorapiserver.APIAggregator, KindServer, error) {
	completed := controlPlane.Complete()
	var last http.Handler = notfoundhandler.New(completed.Generic.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	var kinds KindServer
	if cfg.Kinds != nil {
		kinds = cfg.Kinds(ChainEnd{
			CustomResources: apiExtensions,
			Options:         uncachedOptions{apiExtensions.ExtraConfig.CRDRESTOptionsGetter, storage},
			Keyspace:        storage.client.KV,
			Version:         KubernetesVersion(),
			NotFound:        last,
		})
		last = kinds
	}
	crdServer, err := apiExtensions.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(last))
	if err != nil {
		return nil, nil, fmt.Errorf("create the server of custom resources: %w", err)
	}

	builtins, err := completed.New(serverName, subresourceTarget{crdServer.GenericAPIServer, cfg.Subresources})
	if err != nil {
		return nil, nil, fmt.Errorf("create the server of built-in kinds: %w", err)
	}
	client, err := clientset.NewForConfig(completed.Generic.LoopbackClientConfig)
	if err != nil {
		return nil, nil, err
	}
	providers, err := completed.GenericStorageProviders(client.Discovery())
	if err != nil {
		return nil, nil, err
	}
	priorities := controlplaneapiserver.DefaultGenericAPIServicePriorities()
	if cfg.WorkloadAPIs {
		if providers, err = withWorkloads(&completed, client, cfg.Elsewhere, providers); err != nil {
			return nil, nil, err
		}
		addWorkloadPriorities(priorities)
	}
	if metricsAPI.elsewhere != nil {
		providers = append(providers, metricsAPI)
	}
	if err := builtins.InstallAPIs(providers...); err != nil {
		return nil, nil, fmt.Errorf("install the built-in kinds: %w", err)
	}

	metricsAPI.attach(builtins.GenericAPIServer)

	crdsEnabled := apiExtensions.GenericConfig.MergedResourceConfig.ResourceEnabled(
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	front, err := controlplaneapiserver.CreateAggregatorServer(aggregator.Complete(), builtins.GenericAPIServer,
		crdServer.Informers.Apiextensions().V1().CustomResourceDefinitions(), crdsEnabled, priorities)
	if err != nil {
		return nil, nil, fmt.Errorf("create the aggregating server: %w", err)
	}
	front.GenericAPIServer.ShutdownTimeout = shutdownTimeout
	listGroups(front.GenericAPIServer, func() []metav1.APIGroup {
		if kinds == nil {
			return metricsAPI.groups()
		}
		return append(metricsAPI.groups(), kinds.Groups()...)
	})
	if kinds != nil {
		if err := kinds.Attach(front, crdServer); err != nil {
			return nil, nil, fmt.Errorf("serve kinds without CRDs: %w", err)
		}
	}
	return front, kinds, nil
}
