package apiserver

import (
	"context"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

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
	// kindIdle is how long a kind that nobody uses stays ready to be used, and its
	// group's OpenAPI document in memory.
	kindIdle = 5 * time.Minute
	// kindSweep is how often what is idle is looked for.
	kindSweep = time.Minute
	// kindSource is where aggregated discovery has these groups from: after everybody
	// else's, the lowest of whom wins.
	kindSource = aggregated.CRDSource + 100
)

// kindServer serves the groups of a source at the end of the chain, where neither
// aggregation nor built-in kinds nor CRDs knew a path.
type kindServer struct {
	source   Kinds
	notFound http.Handler
	clock    clock.WithTicker

	// What requests are handled with, as those of custom resources are.
	options    generic.RESTOptionsGetter
	admission  admission.Interface
	authorizer authorizer.Authorizer
	minTimeout time.Duration
	maxBody    int64

	table    atomic.Pointer[kindTable]
	complete chan struct{} // closed when all groups are known
	poke     chan struct{} // received from when others may serve other groups
	foreign  func(group string) string
	synced   []cache.InformerSynced
	merged   aggregated.ResourceManager

	opened  openKinds
	openAPI kindDocuments
}

func newKindServer(source Kinds, c *apiextensionsapiserver.Config, options generic.RESTOptionsGetter, notFound http.Handler) *kindServer {
	s := &kindServer{
		source: source, notFound: notFound, clock: clock.RealClock{},
		options:    options,
		admission:  c.GenericConfig.AdmissionControl,
		authorizer: c.GenericConfig.Authorization.Authorizer,
		minTimeout: time.Duration(c.GenericConfig.MinRequestTimeout) * time.Second,
		maxBody:    c.GenericConfig.MaxRequestBodyBytes,
		complete:   make(chan struct{}),
		poke:       make(chan struct{}, 1),
	}
	s.table.Store(newKindTable(nil, nil))
	s.opened.kinds = map[schema.GroupVersionResource]*openKind{}
	s.openAPI.built = map[schema.GroupVersion]*kindDocument{}
	return s
}

// attach has the front server announce what is served here.
func (s *kindServer) attach(front *aggregatorapiserver.APIAggregator, crds *apiextensionsapiserver.CustomResourceDefinitions) error {
	custom := crds.Informers.Apiextensions().V1().CustomResourceDefinitions()
	services := front.APIRegistrationInformers.Apiregistration().V1().APIServices()
	s.foreign = func(group string) string {
		if group == apiregistration.GroupName {
			return "aggregation"
		}
		// Sooner than its APIService, and with a name that tells more.
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
	again := func() {
		select {
		case s.poke <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{custom.Informer(), services.Informer()} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { again() }, UpdateFunc: func(any, any) { again() }, DeleteFunc: func(any) { again() },
		})
		if err != nil {
			return err
		}
		s.synced = append(s.synced, informer.HasSynced)
	}
	generic := front.GenericAPIServer
	s.merged = generic.AggregatedDiscoveryGroupManager.WithSource(kindSource)
	s.listGroups(generic)
	if err := generic.RegisterMuxAndDiscoveryCompleteSignal("KindsNotComplete", s.complete); err != nil {
		return err
	}
	return generic.AddPostStartHook("serve-kinds", func(hook genericapiserver.PostStartHookContext) error {
		// Not waited for: a source may itself need an API that is ready.
		go s.follow(hook.Context)
		go s.sweep(hook.Context)
		return nil
	})
}

// follow serves what the source tells of, until ctx ends.
func (s *kindServer) follow(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return
	}
	synced := s.source.Synced()
	for {
		changed := s.source.Changed()
		s.update(newKindTable(s.source.Groups(), s.foreign))
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.poke:
		case <-synced:
			// What it has had from now on is complete, and nothing before.
			s.update(newKindTable(s.source.Groups(), s.foreign))
			close(s.complete)
			synced = nil
		}
	}
}

// update exchanges the table and tells everybody.
func (s *kindServer) update(next *kindTable) {
	last := s.table.Swap(next)
	s.opened.retire(func(k *openKind) bool {
		_, revision, ok := next.find(k.resource)
		return !ok || revision != k.revision
	})
	s.openAPI.retain(next)
	s.announce(last, next)
	if !maps.Equal(last.refused, next.refused) {
		for group, reason := range next.refused {
			klog.InfoS("Kinds of a group are not served", "group", group, "reason", reason)
		}
		s.source.Refused(maps.Clone(next.refused))
	}
}

// announce keeps aggregated discovery up to date.
func (s *kindServer) announce(last, next *kindTable) {
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
			s.merged.SetGroupVersionPriority(metav1.GroupVersion(gv), kindDiscoveryPriority, 100-i)
		}
	}
}

// sweep forgets what nobody uses, until ctx ends, and then everything.
func (s *kindServer) sweep(ctx context.Context) {
	ticker := s.clock.NewTicker(kindSweep)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			s.opened.retire(func(*openKind) bool { return true })
			return
		case now := <-ticker.C():
			s.opened.retireIdle(now.Add(-kindIdle))
			s.openAPI.forget(now.Add(-kindIdle))
		}
	}
}

// await waits until all groups are known. It fails when ctx ends.
func (s *kindServer) await(ctx context.Context) error {
	select {
	case <-s.complete:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
