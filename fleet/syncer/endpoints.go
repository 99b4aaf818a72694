package syncer

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// What the EndpointSlices of one exported Service may take in memory. A member may have any number of them.
const (
	maxExportedCached = 1000
	maxExportedBytes  = 16 << 20
)

// endpointWatches watch the EndpointSlices of the exported Services in the member, each Service on its own: those of all
// others may be many, and are no concern of Atoll.
type endpointWatches struct {
	dyn      dynamic.Interface
	onChange func(types.NamespacedName) // is called with the key of the binding

	mu      sync.Mutex
	running sync.WaitGroup
	watches map[types.NamespacedName]endpointWatch // by the keys of bindings
	leaving map[types.NamespacedName]leavingPods   // by the keys of the workloads' bindings
}

type endpointWatch struct {
	controllers.Cache[discoveryv1.EndpointSlice]
	stop context.CancelFunc
}

// of returns the watch of a Service, and starts it if necessary. It runs until ctx ends.
func (w *endpointWatches) of(ctx context.Context, binding types.NamespacedName, service string) endpointWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one, ok := w.watches[binding]; ok {
		return one
	}
	selector := labels.Set{discoveryv1.LabelServiceName: service}.String()
	api := w.dyn.Resource(schema.GroupVersionResource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))).Namespace(binding.Namespace)
	bounds := fleet.ListBounds{Max: maxExportedCached, Bytes: maxExportedBytes}
	lw := bounds.Bound(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return api.Watch(ctx, o)
		},
	})
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, w.dyn), &unstructured.Unstructured{}, 0, cache.Indexers{})
	one := endpointWatch{Cache: controllers.Cache[discoveryv1.EndpointSlice]{Informer: controllers.Transformed(informer, controllers.Decode[discoveryv1.EndpointSlice])}}
	// It fails only on an informer that has been stopped.
	_ = one.OnChange(func(_, _ *discoveryv1.EndpointSlice) { w.onChange(binding) })
	ctx, one.stop = context.WithCancel(ctx)
	w.running.Go(func() { informer.RunWithContext(ctx) })
	w.running.Go(func() {
		// A Service may have no EndpointSlices, and then there is no event.
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			w.onChange(binding)
		}
	})
	if w.watches == nil {
		w.watches = map[types.NamespacedName]endpointWatch{}
	}
	w.watches[binding] = one
	return one
}

// end stops the watch of a Service, if there is one.
func (w *endpointWatches) end(binding types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one, ok := w.watches[binding]; ok {
		one.stop()
		delete(w.watches, binding)
	}
}

// Bounds of the reports on one exported Service. When pods are replaced, some changes follow each other closely: a pod stops,
// the next one exists, it is ready. None of them may wait, because clients in other clusters have too few endpoints meanwhile, or
// one that no longer serves. Endpoints that change all the time are reported at the interval.
const (
	endpointReportBurst    = 6
	endpointReportInterval = 500 * time.Millisecond
)

// reportedEndpoints is the last report on the endpoints of an exported Service.
type reportedEndpoints struct {
	digest string
	limit  *rate.Limiter
}

// delay returns how long to delay the next report; if it is 0, the report counts from now on.
func (r *reportedEndpoints) delay(now time.Time) time.Duration {
	if r.limit == nil {
		r.limit = rate.NewLimiter(rate.Every(endpointReportInterval), endpointReportBurst)
	}
	next := r.limit.ReserveN(now, 1)
	wait := next.DelayFrom(now)
	if wait > 0 {
		next.CancelAt(now)
	}
	return wait
}

// reportEndpoints reports the endpoints of an exported Service that the member has, if they have changed.
func (s *Syncer) reportEndpoints(ctx context.Context, b *v1alpha1.ResourceBinding, m *record) error {
	export := b.Annotations[v1alpha1.ExportedAnnotation]
	if export == "" || m.entry == nil || m.entry.UID == "" || !multicluster.Exports(b, s.cluster) || b.Spec.Resource.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("Service") {
		s.endpoints.end(b.Key())
		m.endpoints = reportedEndpoints{}
		return nil
	}
	w := s.endpoints.of(s.member.ctx, b.Key(), b.Spec.Resource.Name)
	if !w.Informer.HasSynced() {
		return nil // another call follows
	}
	found := multicluster.Collect(w.All(), s.endpoints.leavingIn(b.Namespace))
	digest := digestOf([]any{export, found})
	if digest == m.endpoints.digest {
		return nil
	}
	if wait := m.endpoints.delay(s.clock.Now()); wait > 0 {
		s.queue.AddAfter(b.Key(), wait)
		return nil
	}
	if err := s.ReportEndpoints(ctx, b, found); err != nil {
		return err
	}
	m.endpoints.digest = digest
	return nil
}

// derivedAddresses returns the addresses of a Service that was derived from a ServiceImport, nil if the object is no such
// Service.
func derivedAddresses(live *unstructured.Unstructured) []string {
	if live.GetKind() != "Service" || live.GetLabels()[v1alpha1.ImportedLabel] != "true" {
		return nil
	}
	ips, _, _ := unstructured.NestedStringSlice(live.Object, "spec", "clusterIPs")
	if len(ips) > v1alpha1.MaxClusterIPs || len(ips) > 0 && ips[0] == corev1.ClusterIPNone {
		return nil
	}
	return ips
}
