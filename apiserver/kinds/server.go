package kinds

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/utils/clock"
)

const (
	// idleTimeout is how long an unused kind stays open, and its group's OpenAPI document
	// in memory.
	idleTimeout = 5 * time.Minute
	// sweepInterval is the interval of looking for idle kinds.
	sweepInterval = time.Minute
	// discoverySource is the priority of these groups in aggregated discovery. On a conflict
	// the lowest source wins, so this one comes after all others.
	discoverySource = aggregated.CRDSource + 100
)

// Server serves the groups of a source at the end of the chain, for paths that are
// served neither by aggregation nor by built-in kinds nor by CRDs. It implements
// apiserver.KindServer.
type Server struct {
	source   Source
	version  string // of Kubernetes
	notFound http.Handler
	clock    clock.WithTicker

	// Request handling, configured as for custom resources.
	options    generic.RESTOptionsGetter
	admission  admission.Interface
	authorizer authorizer.Authorizer
	minTimeout time.Duration
	maxBody    int64

	table       atomic.Pointer[kindTable]
	loaded      chan struct{} // closed when all groups are known
	recheck     chan struct{} // receives when other servers in the chain may serve other groups
	otherServer func(group string) string
	synced      []cache.InformerSynced
	merged      aggregated.ResourceManager

	opened  openKinds
	openAPI kindDocuments
	stored  storedResources
}

// ChainEnd is the place of a Server in the chain. It has the fields of apiserver.ChainEnd,
// which converts to it.
type ChainEnd struct {
	// CustomResources configures the server of custom resources. Kinds are served in the
	// same way: admission, authorization, limits of requests.
	CustomResources *apiextensionsapiserver.Config
	// Options open the storage of a kind. It should have no watch cache (see DESIGN.md).
	Options generic.RESTOptionsGetter
	// Keyspace holds the stored objects.
	Keyspace clientv3.KV
	// Version of Kubernetes, for OpenAPI documents.
	Version string
	// NotFound answers requests for anything else.
	NotFound http.Handler
}

// New returns the server of a source's kinds. It announces them after Attach.
func New(source Source, end ChainEnd) *Server {
	c := end.CustomResources
	s := &Server{
		source: source, version: end.Version, notFound: end.NotFound, clock: clock.RealClock{},
		options:    end.Options,
		admission:  c.GenericConfig.AdmissionControl,
		authorizer: c.GenericConfig.Authorization.Authorizer,
		minTimeout: time.Duration(c.GenericConfig.MinRequestTimeout) * time.Second,
		maxBody:    c.GenericConfig.MaxRequestBodyBytes,
		loaded:     make(chan struct{}),
		recheck:    make(chan struct{}, 1),
		stored:     storedResources{kv: end.Keyspace},
		// Attach replaces it by that of the front server.
		merged: aggregated.NewResourceManager("apis"),
	}
	s.table.Store(newTable(nil, nil))
	s.opened.kinds = map[schema.GroupVersionResource]*openKind{}
	s.openAPI.built = map[schema.GroupVersion]*kindDocument{}
	return s
}

// Attach makes the front server announce the groups that are served here.
func (s *Server) Attach(front *aggregatorapiserver.APIAggregator, crds *apiextensionsapiserver.CustomResourceDefinitions) error {
	custom := crds.Informers.Apiextensions().V1().CustomResourceDefinitions()
	services := front.APIRegistrationInformers.Apiregistration().V1().APIServices()
	s.otherServer = func(group string) string {
		if group == apiregistration.GroupName {
			return "aggregation"
		}
		// The CRD is visible sooner than its APIService, and its name is more
		// informative.
		all, _ := custom.Lister().List(labels.Everything()) // an error is impossible: it is a cache
		for _, crd := range all {
			if crd.Spec.Group == group {
				return "CustomResourceDefinition " + crd.Name
			}
		}
		others, _ := services.Lister().List(labels.Everything())
		for _, other := range others {
			if other.Spec.Group == group {
				return "APIService " + other.Name
			}
		}
		return ""
	}
	for _, informer := range []cache.SharedIndexInformer{custom.Informer(), services.Informer()} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { s.lookAgain() }, UpdateFunc: func(any, any) { s.lookAgain() }, DeleteFunc: func(any) { s.lookAgain() },
		})
		if err != nil {
			return err
		}
		s.synced = append(s.synced, informer.HasSynced)
	}
	generic := front.GenericAPIServer
	s.merged = generic.AggregatedDiscoveryGroupManager.WithSource(discoverySource)
	if err := generic.RegisterMuxAndDiscoveryCompleteSignal("KindsNotComplete", s.loaded); err != nil {
		return err
	}
	return generic.AddPostStartHook("serve-kinds", func(hook genericapiserver.PostStartHookContext) error {
		// Do not wait for it: the source may itself need an API that is ready.
		go s.follow(hook.Context)
		go s.sweep(hook.Context)
		return nil
	})
}

// Run serves the source's current groups until ctx ends, for a server without a front server: instead of Attach. otherServer returns
// which other server has a group, "" if none has; such a group is not served here.
func (s *Server) Run(ctx context.Context, otherServer func(group string) string) {
	s.otherServer = otherServer
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { s.sweep(ctx) })
	work.Go(func() { s.recheckRefused(ctx) })
	s.follow(ctx)
}

// recheckRefused looks again for the groups that other servers have, until ctx ends: no informer announces when they lose one.
func (s *Server) recheckRefused(ctx context.Context) {
	ticker := s.clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			if len(s.table.Load().refused) > 0 {
				s.lookAgain()
			}
		}
	}
}

// lookAgain makes follow ask which groups other servers have. It does not block.
func (s *Server) lookAgain() {
	select {
	case s.recheck <- struct{}{}:
	default:
	}
}

// Serves reports whether a group is served now.
func (s *Server) Serves(group string) bool {
	_, ok := s.table.Load().group(group)
	return ok
}

// Discovery serves the document of the groups that are served now, for a server without a front server.
func (s *Server) Discovery() http.Handler { return s.merged }

// follow serves the source's current groups until ctx ends.
func (s *Server) follow(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return
	}
	synced := s.source.Synced()
	for {
		changed := s.source.Changed()
		s.update(newTable(s.source.Groups(), s.otherServer))
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.recheck:
		case <-synced:
			// Groups is complete from now on, not before.
			s.update(newTable(s.source.Groups(), s.otherServer))
			close(s.loaded)
			synced = nil
		}
	}
}

// update replaces the table, then updates discovery and notifies the source.
func (s *Server) update(next *kindTable) {
	last := s.table.Swap(next)
	s.opened.retire(func(k *openKind) bool {
		_, revision, ok := next.find(k.resource)
		return !ok || revision != k.revision
	})
	s.openAPI.retain(s.version, next)
	s.announce(last, next)
	if !maps.Equal(last.refused, next.refused) {
		for group, reason := range next.refused {
			klog.InfoS("API group not served", "group", group, "reason", reason)
		}
		s.source.Refused(maps.Clone(next.refused))
	}
}

// announce updates aggregated discovery.
func (s *Server) announce(last, next *kindTable) {
	for gv := range last.versions {
		if _, ok := next.versions[gv]; !ok {
			s.merged.RemoveGroupVersion(metav1.GroupVersion(gv))
		}
	}
	for _, group := range next.groups {
		for i, v := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: v.Name}
			if before, ok := last.versions[gv]; ok && before.Revision == v.Revision {
				continue
			}
			s.merged.AddGroupVersion(group.Name, next.versions[gv].aggregated(group.Name))
			s.merged.SetGroupVersionPriority(metav1.GroupVersion(gv), discoveryPriority, 100-i)
		}
	}
}

// sweep drops unused kinds until ctx ends, and then all of them.
func (s *Server) sweep(ctx context.Context) {
	ticker := s.clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			s.opened.retire(func(*openKind) bool { return true })
			return
		case now := <-ticker.C():
			s.opened.retireIdle(now.Add(-idleTimeout))
			s.openAPI.forget(now.Add(-idleTimeout))
		}
	}
}

// Await waits until all groups are known. It returns an error when ctx ends.
func (s *Server) Await(ctx context.Context) error {
	select {
	case <-s.loaded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
