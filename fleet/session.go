package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Session is what the controllers share during one leadership session: clients of the control
// plane, and one cache of everything that the fleet reads there, regardless of the number of
// clusters. Objects from the caches must not be changed.
//
// The binding of a cluster-scoped object is a ClusterResourceBinding in the API. Here it is a
// ResourceBinding with an empty namespace. Every statement about bindings applies to it too.
type Session struct {
	Dynamic dynamic.Interface
	Kube    kubernetes.Interface
	Events  record.EventRecorder
	Clock   clock.WithTicker
	Log     *slog.Logger
	Metrics *Metrics // may be nil
	// Started is when the session began. Status that was recorded earlier is unconfirmed.
	Started time.Time

	clusters cache.SharedIndexInformer
	bindings bindingCaches
	// namespaces holds only metadata.
	namespaces cache.SharedIndexInformer
	policies   policyCaches
	kinds      *registry
	types      *typeCaches
	accesses   accessCache
	running    sync.WaitGroup

	mu          sync.Mutex
	subscribers map[string]map[*subscription]bool
}

// NewSession starts the caches and returns when they are filled. They run until ctx ends.
func NewSession(ctx context.Context, cfg Config) (*Session, error) {
	kube, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	kinds, err := servedKinds(kube.Discovery())
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	return NewSessionWithClients(ctx, cfg, kube, dyn, meta, kinds)
}

// NewSessionWithClients is NewSession with the given clients, for the given kinds and all custom
// ones. Without a metadata client, opaque kinds are watched in full like the others.
func NewSessionWithClients(ctx context.Context, cfg Config, kube kubernetes.Interface, dyn dynamic.Interface, meta metadata.Interface, kinds []interpret.KindInfo) (*Session, error) {
	t := &Session{
		Dynamic: dyn, Kube: kube, Clock: cfg.Clock, Log: cfg.Log, Metrics: cfg.Metrics, Started: cfg.Clock.Now(),
		clusters: informer(dyn, v1alpha1.ClusterResource, nil, DecodeAs[v1alpha1.Cluster]),
		bindings: newBindingCaches(dyn), policies: newPolicyCaches(dyn), kinds: newRegistry(dyn, meta), types: newTypeCaches(dyn),
		namespaces:  objectInformer(dyn, meta, namespaceKind()),
		subscribers: map[string]map[*subscription]bool{},
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	t.Events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "atoll-fleet"})

	if err := t.fanOut(); err != nil {
		return nil, err
	}
	if err := t.fill(ctx, slices.Concat([]cache.SharedIndexInformer{t.clusters, t.namespaces}, t.bindings.all(), t.policies.all(), t.types.all())...); err != nil {
		return nil, err
	}
	var opened []cache.SharedIndexInformer
	for _, k := range kinds {
		if _, custom := t.types.defines(k.GroupKind()); custom {
			continue // the control plane has it from a CRD, so it is handled as a custom kind
		}
		_, i, err := t.kinds.open(ctx, entry{KindInfo: k, inTable: true, status: true})
		if err != nil {
			return nil, err
		}
		opened = append(opened, i)
	}
	if err := t.fill(ctx, opened...); err != nil {
		return nil, err
	}
	for _, i := range opened {
		t.kinds.markServed(i)
	}
	return t, t.startCustomKinds(ctx)
}

// fill starts informers and returns when they are synced.
func (s *Session) fill(ctx context.Context, informers ...cache.SharedIndexInformer) error {
	synced := make([]cache.InformerSynced, 0, len(informers))
	for _, i := range informers {
		s.running.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("fleet: fill the caches: %w", context.Cause(ctx))
	}
	return nil
}

// Wait returns when the caches have stopped, after the context that the Session was made with has
// ended.
func (s *Session) Wait() { s.running.Wait() }

// servedKinds returns the built-in kinds that this control plane serves: it may run without the
// workload kinds.
func servedKinds(d discovery.DiscoveryInterface) ([]interpret.KindInfo, error) {
	var out []interpret.KindInfo
	lists := map[string]*metav1.APIResourceList{}
	for _, k := range interpret.Kinds() {
		gv := k.GroupVersion().String()
		list, ok := lists[gv]
		if !ok {
			var err error
			list, err = d.ServerResourcesForGroupVersion(gv)
			if err != nil && !isNotServed(err) {
				return nil, fmt.Errorf("fleet: discover the resources of %s in the control plane: %w", gv, err)
			}
			lists[gv] = list
		}
		if list == nil {
			continue
		}
		for _, r := range list.APIResources {
			if r.Name == k.Resource {
				out = append(out, k)
				break
			}
		}
	}
	return out, nil
}

// Cluster returns one Cluster from the cache.
func (s *Session) Cluster(name string) (*v1alpha1.Cluster, bool) {
	return get[v1alpha1.Cluster](s.clusters, name)
}

// Clusters returns all Clusters from the cache, in no particular order.
func (s *Session) Clusters() []*v1alpha1.Cluster {
	return list[v1alpha1.Cluster](s.clusters.GetStore().List())
}

// namespaceKind is not in the built-in table. Namespaces are not placed: they are created in
// clusters for the objects in them.
func namespaceKind() interpret.KindInfo {
	return interpret.KindInfo{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), Resource: "namespaces", ClusterScoped: true, Opaque: true}
}

// Namespace returns the metadata of a namespace from the cache.
func (s *Session) Namespace(name string) (metav1.Object, bool) {
	item, found, err := s.namespaces.GetStore().GetByKey(name)
	if err != nil || !found {
		return nil, false
	}
	ns, ok := item.(metav1.Object)
	return ns, ok
}

// OnNamespace is OnCluster for namespaces. was and is hold only metadata.
func (s *Session) OnNamespace(f func(was, is metav1.Object)) error {
	return AddHandler(s.namespaces, f)
}
