package workspaces

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionslisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapiv3"
	crdopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/handler3"
)

// customServer is upstream's server of custom resources with its controllers, for one workspace. It takes a megabyte and dozens of
// goroutines, so only workspaces with CustomResourceDefinitions have one, while they are awake.
type customServer struct {
	handler http.Handler
	// groups are the groups of custom resources and the built-in ones, in discovery.
	groups aggregated.ResourceManager
	// openAPI has the documents of custom resources.
	openAPI http.Handler
	// definitions are all that the workspace has, also those that are not served yet.
	definitions apiextensionslisters.CustomResourceDefinitionLister
	// synced is closed when all definitions are known.
	synced chan struct{}
	stop   func()
}

// customSyncTimeout bounds the wait for the definitions of a workspace.
const customSyncTimeout = 10 * time.Second

// custom returns the server of the workspace's custom resources, and starts it if it does not run.
func (w *Workspace) custom(c *chain) (*customServer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stores == nil {
		return nil, errClosed
	}
	if w.crds == nil {
		server, err := c.newCustomServer(w)
		if err != nil {
			return nil, fmt.Errorf("serve custom resources: %w", err)
		}
		w.crds = server
	}
	return w.crds, nil
}

// running returns the server of custom resources if it runs.
func (w *Workspace) running() *customServer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.crds
}

// definitionsPrefix is the prefix of the keys of CustomResourceDefinitions.
const definitionsPrefix = "/registry/apiextensions.k8s.io/customresourcedefinitions/"

// hasDefinitions reports whether a workspace has CustomResourceDefinitions. It reads from the keyspace: another server may have
// written the first one.
func (w *Workspace) hasDefinitions(ctx context.Context) (bool, error) {
	if w.running() != nil {
		return true, nil
	}
	found, err := w.client.KV.Get(ctx, definitionsPrefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return false, fmt.Errorf("look for definitions of custom resources: %w", err)
	}
	return len(found.Kvs) > 0, nil
}

// await waits until all definitions are known: until then, a resource could seem not to exist.
func (s *customServer) await(ctx context.Context) error {
	select {
	case <-s.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(customSyncTimeout):
		return apierrors.NewServiceUnavailable("the definitions of custom resources are not known yet: retry")
	}
}

// serveCustom is the end of the chain: it serves the definitions and the custom resources of a workspace.
func (c *chain) serveCustom(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	workspace := workspaceOf(ctx)
	info, known := request.RequestInfoFrom(ctx)
	if workspace == nil || !known || !strings.HasPrefix(info.Path, "/apis/") {
		noSuchPath(w, r)
		return
	}
	group := groupOf(info.Path)
	if c.isKindsGroup(group) && c.serveKinds(w, r, workspace, group) {
		return
	}
	if group != apiextensionsv1.GroupName { // definitions are those of the workspace itself
		bound, err := c.bindingOf(ctx, workspace, group)
		if err != nil {
			c.log.Error("read the bindings of a workspace failed", "workspace", PathOf(ctx), "error", err)
			answer(w, r, unavailable("the bindings of the workspace cannot be read now: retry"))
			return
		}
		if bound != nil {
			c.serveBound(w, r, workspace, bound, info)
			return
		}
		has, err := workspace.hasDefinitions(ctx)
		if err != nil {
			answer(w, r, apierrors.NewServiceUnavailable("the definitions of custom resources cannot be read now: retry"))
			return
		}
		if !has {
			noSuchPath(w, r)
			return
		}
	}
	c.serveDefined(w, r, workspace, !isServers(ctx) || group != apiextensionsv1.GroupName)
}

// serveDefined serves what a workspace defines.
func (c *chain) serveDefined(w http.ResponseWriter, r *http.Request, by *Workspace, synced bool) {
	server, err := by.custom(c)
	if err == nil && synced { // its own informer reads the definitions before that
		err = server.await(r.Context())
	}
	if err != nil {
		answer(w, r, apierrors.NewServiceUnavailable(err.Error()))
		return
	}
	server.handler.ServeHTTP(w, r)
}

// groupOf returns the API group of a path below /apis/.
func groupOf(path string) string {
	group, _, _ := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
	return group
}

// newCustomServer starts the server of custom resources of a workspace.
func (c *chain) newCustomServer(w *Workspace) (*customServer, error) {
	groups, err := c.builtInGroups()
	if err != nil {
		return nil, err
	}
	g := *c.generic
	g.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	// It would end the process if the workspace were closed before the definitions are known.
	g.DisabledPostStartHooks = sets.NewString("crd-informer-synced")
	g.LoopbackClientConfig = c.clientConfig(w)
	g.AggregatedDiscoveryGroupManager = groups
	g.MergedResourceConfig = apiextensionsapiserver.DefaultAPIResourceConfigSource()
	// Only to merge changes of the definitions themselves.
	g.OpenAPIConfig, g.SkipOpenAPIInstallation = nil, true
	g.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(crdopenapi.GetOpenAPIDefinitions),
		openapinamer.NewDefinitionNamer(apiextensionsapiserver.Scheme))
	g.StorageObjectCountTracker, g.FlowControl = nil, nil
	g.BuildHandlerChainFunc = func(h http.Handler, _ *genericapiserver.Config) http.Handler { return h }
	etcd := *c.etcd
	etcd.StorageConfig.Codec = apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
	etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(apiextensionsv1beta1.SchemeGroupVersion, schema.GroupKind{Group: apiextensionsv1beta1.GroupName})
	own := options{transformer: c.transformer, quotas: c.quotas, of: func(context.Context) *Workspace { return w }}
	own.upstream = etcd.CreateRESTOptionsGetter(&serveroptions.SimpleStorageFactory{StorageConfig: etcd.StorageConfig}, nil)
	g.RESTOptionsGetter = own
	of := own
	of.of, of.client, of.reservations = objectsOf(w), c.withReservations, c.reservations
	of.upstream = apiextensionsoptions.NewCRDRESTOptionsGetter(etcd, nil, nil)

	cfg := &apiextensionsapiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: g},
		ExtraConfig:   apiextensionsapiserver.ExtraConfig{CRDRESTOptionsGetter: of, MasterCount: c.servers, ServiceResolver: noServices{}, AuthResolverWrapper: c.outgoing.resolver},
	}
	server, err := cfg.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(http.HandlerFunc(noSuchPath)))
	if err != nil {
		return nil, err
	}
	informer := server.Informers.Apiextensions().V1().CustomResourceDefinitions()
	documents, paths := handler3.NewOpenAPIService(), mux.NewPathRecorderMux("openapi of custom resources")
	if err := documents.RegisterOpenAPIV3VersionedService("/openapi/v3", paths); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &customServer{handler: server.GenericAPIServer.UnprotectedHandler(), groups: groups, openAPI: paths, definitions: informer.Lister(), synced: make(chan struct{}), stop: func() {
		cancel()
		server.Informers.Shutdown()
		server.GenericAPIServer.Destroy()
	}}
	controller := openapiv3.NewController(informer)
	server.GenericAPIServer.RunPostStartHooks(ctx)
	go controller.Run(documents, ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
			close(s.synced)
		}
	}()
	return s, nil
}

// noServices is for webhooks: a workspace routes to no Service.
type noServices struct{}

func (noServices) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("service %s/%s: a workspace runs no Services: set url, with a URL that Atoll can reach, instead of service", namespace, name)
}
