package fleet

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Term is what the controllers share during one term of leadership: clients of
// the control plane, and one cache of everything that the fleet reads there,
// however many clusters there are. Objects from the caches must not be changed.
type Term struct {
	Dynamic dynamic.Interface
	Kube    kubernetes.Interface
	Events  record.EventRecorder
	Clock   clock.WithTicker
	Log     *slog.Logger
	// Started is when the term began: what was written down before is hearsay.
	Started time.Time
	// Kinds are the known kinds that this control plane serves.
	Kinds []interpret.Kind

	clusters cache.SharedIndexInformer
	bindings cache.SharedIndexInformer
	objects  map[schema.GroupKind]cache.SharedIndexInformer
	running  sync.WaitGroup

	mu          sync.Mutex
	subscribers map[string]map[*subscription]bool
}

const byCluster = "cluster"

// NewTerm starts the caches and returns when they are filled. They run until ctx
// ends.
func NewTerm(ctx context.Context, cfg Config) (*Term, error) {
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
	return TermOver(ctx, cfg, kube, dyn, meta, kinds)
}

// TermOver is NewTerm over given clients, for those kinds. Without a metadata
// client, opaque kinds are watched whole like the others.
func TermOver(ctx context.Context, cfg Config, kube kubernetes.Interface, dyn dynamic.Interface, meta metadata.Interface, kinds []interpret.Kind) (*Term, error) {
	t := &Term{
		Dynamic: dyn, Kube: kube, Clock: cfg.Clock, Log: cfg.Log, Started: cfg.Clock.Now(), Kinds: kinds,
		objects:     map[schema.GroupKind]cache.SharedIndexInformer{},
		subscribers: map[string]map[*subscription]bool{},
	}
	t.clusters = informer(dyn, v1alpha1.ClusterResource, nil, into[v1alpha1.Cluster])
	t.bindings = informer(dyn, v1alpha1.ResourceBindingResource, cache.Indexers{byCluster: clustersOf}, into[v1alpha1.ResourceBinding])
	all := []cache.SharedIndexInformer{t.clusters, t.bindings}
	for _, k := range kinds {
		i := objectInformer(dyn, meta, k)
		t.objects[k.GroupKind()] = i
		all = append(all, i)
		if err := t.fanOutObjects(k, i); err != nil {
			return nil, err
		}
	}
	if err := t.fanOutBindings(); err != nil {
		return nil, err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	t.Events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "atoll-fleet"})

	synced := make([]cache.InformerSynced, 0, len(all))
	for _, i := range all {
		t.running.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil, fmt.Errorf("fleet: fill the caches: %w", context.Cause(ctx))
	}
	return t, nil
}

// wait returns when the caches have stopped.
func (t *Term) wait() { t.running.Wait() }

// servedKinds leaves out what this control plane does not serve: it may run
// without the workload kinds.
func servedKinds(d discovery.DiscoveryInterface) ([]interpret.Kind, error) {
	var out []interpret.Kind
	lists := map[string]*metav1.APIResourceList{}
	for _, k := range interpret.Kinds() {
		if k.ClusterScoped {
			continue // bindings have namespaces
		}
		gv := k.GroupVersion().String()
		list, ok := lists[gv]
		if !ok {
			var err error
			list, err = d.ServerResourcesForGroupVersion(gv)
			if err != nil && !isNotServed(err) {
				return nil, fmt.Errorf("fleet: ask what the control plane serves of %s: %w", gv, err)
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

func informer(dyn dynamic.Interface, gvr schema.GroupVersionResource, indexers cache.Indexers, transform cache.TransformFunc) cache.SharedIndexInformer {
	if indexers == nil {
		indexers = cache.Indexers{}
	}
	indexers[cache.NamespaceIndex] = cache.MetaNamespaceIndexFunc
	return transformed(dynamicinformer.NewFilteredDynamicInformer(dyn, gvr, metav1.NamespaceAll, 0, indexers, nil).Informer(), transform)
}

func transformed(i cache.SharedIndexInformer, transform cache.TransformFunc) cache.SharedIndexInformer {
	// It fails only on a running informer, which this one is not.
	if err := i.SetTransform(transform); err != nil {
		panic(err)
	}
	return i
}

// objectInformer watches a known kind: of an opaque one only the metadata, since
// a control plane may hold many such objects that no cluster ever gets.
func objectInformer(dyn dynamic.Interface, meta metadata.Interface, k interpret.Kind) cache.SharedIndexInformer {
	if !k.Opaque || meta == nil {
		return informer(dyn, k.GVR(), nil, withoutManagedFields)
	}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return transformed(metadatainformer.NewFilteredMetadataInformer(meta, k.GVR(), metav1.NamespaceAll, 0, indexers, nil).Informer(), slimMetadata(k))
}

// slimMetadata makes an informer hold of metadata what is needed, under the name
// of the kind that it belongs to: the API server calls all of it
// PartialObjectMetadata.
func slimMetadata(k interpret.Kind) cache.TransformFunc {
	var is metav1.TypeMeta
	is.APIVersion, is.Kind = k.ToAPIVersionAndKind()
	return func(obj any) (any, error) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			m.TypeMeta, m.ManagedFields = is, nil
		}
		return obj, nil
	}
}

// asObject gives what an informer of a known kind holds as the object. Metadata
// becomes an object of which all else is missing: only now, since as maps it would
// take twice the memory, for the many that nobody asks for.
func asObject(item any) (*unstructured.Unstructured, bool) {
	m, ok := item.(*metav1.PartialObjectMetadata)
	if !ok {
		u, ok := item.(*unstructured.Unstructured)
		return u, ok
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&m.ObjectMeta)
	if err != nil {
		return nil, false // as with into: never found
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": m.APIVersion, "kind": m.Kind, "metadata": content}}, true
}

// into makes an informer hold T instead of maps: smaller, and read without
// decoding. What cannot be read is left as it is and so never found by Get, which
// the controllers take for "do nothing".
func into[T any](obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	u.SetManagedFields(nil)
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return obj, nil
	}
	return out, nil
}

func withoutManagedFields(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return obj, nil
}

func clustersOf(obj any) ([]string, error) {
	b, ok := obj.(*v1alpha1.ResourceBinding)
	if !ok {
		return nil, nil
	}
	names := make([]string, 0, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		names = append(names, c.Name)
	}
	for _, c := range b.Status.Clusters {
		if _, chosen := b.Share(c.Name); !chosen {
			names = append(names, c.Name)
		}
	}
	return names, nil
}

func get[T any](i cache.SharedIndexInformer, key string) (*T, bool) {
	obj, found, err := i.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil, false
	}
	out, ok := obj.(*T)
	return out, ok
}

func list[T any](items []any) []*T {
	out := make([]*T, 0, len(items))
	for _, item := range items {
		if t, ok := item.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// Cluster gives one Cluster from the cache.
func (t *Term) Cluster(name string) (*v1alpha1.Cluster, bool) {
	return get[v1alpha1.Cluster](t.clusters, name)
}

// Clusters gives all Clusters from the cache, in no order.
func (t *Term) Clusters() []*v1alpha1.Cluster {
	return list[v1alpha1.Cluster](t.clusters.GetStore().List())
}

// Binding gives one ResourceBinding from the cache.
func (t *Term) Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	return get[v1alpha1.ResourceBinding](t.bindings, key.String())
}

// Bindings gives all ResourceBindings from the cache, in no order.
func (t *Term) Bindings() []*v1alpha1.ResourceBinding {
	return list[v1alpha1.ResourceBinding](t.bindings.GetStore().List())
}

// BindingsOn gives the ResourceBindings that choose a cluster or have something
// there still.
func (t *Term) BindingsOn(cluster string) []*v1alpha1.ResourceBinding {
	items, err := t.bindings.GetIndexer().ByIndex(byCluster, cluster)
	if err != nil {
		return nil // the index exists: TermOver made it
	}
	return list[v1alpha1.ResourceBinding](items)
}

// Object gives an object of a known kind from the cache. Of an opaque kind it has
// only the metadata; Whole has the rest.
func (t *Term) Object(gk schema.GroupKind, key types.NamespacedName) (*unstructured.Unstructured, bool) {
	i, served := t.objects[gk]
	if !served {
		return nil, false
	}
	item, found, err := i.GetStore().GetByKey(key.String())
	if err != nil || !found {
		return nil, false
	}
	return asObject(item)
}

// Whole gives all of an object that Object gave: at least as new as that one. It is
// false if by now there is no such object or another of its name, which will be an
// event.
func (t *Term) Whole(ctx context.Context, k interpret.Kind, obj *unstructured.Unstructured) (*unstructured.Unstructured, bool, error) {
	if !k.Opaque {
		return obj, true, nil
	}
	whole, err := t.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	case whole.GetUID() != obj.GetUID():
		return nil, false, nil
	}
	whole.SetManagedFields(nil)
	return whole, true, nil
}

// Objects goes through the objects of a known kind in a namespace, or with "" in
// all of them, as Object gives them: one after another, so that those of an opaque
// kind are never all in memory.
func (t *Term) Objects(gk schema.GroupKind, namespace string) iter.Seq[*unstructured.Unstructured] {
	return func(yield func(*unstructured.Unstructured) bool) {
		for _, item := range t.items(gk, namespace) {
			if obj, ok := asObject(item); ok && !yield(obj) {
				return
			}
		}
	}
}

func (t *Term) items(gk schema.GroupKind, namespace string) []any {
	i, served := t.objects[gk]
	if !served {
		return nil
	}
	if namespace == "" {
		return i.GetStore().List()
	}
	items, err := i.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // the index exists: objectInformer made it
	}
	return items
}

// Served tells whether the control plane serves a kind, and what is known of it.
func (t *Term) Served(gk schema.GroupKind) (interpret.Kind, bool) {
	i := slices.IndexFunc(t.Kinds, func(k interpret.Kind) bool { return k.GroupKind() == gk })
	if i < 0 {
		return interpret.Kind{}, false
	}
	return t.Kinds[i], true
}
