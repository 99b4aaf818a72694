package plans

import (
	"context"
	"errors"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// caches hold the objects that the reconciler decides by. Objects returned from them must not be modified.
type caches struct {
	plans, approvals, applies, policies, clusters, namespaces cache.SharedIndexInformer
}

func newCaches(client dynamic.Interface) *caches {
	return &caches{
		plans:      informer(client, v1alpha1.PlanResource, decodeTo[v1alpha1.Plan]),
		approvals:  informer(client, v1alpha1.ApprovalResource, decodeTo[v1alpha1.Approval]),
		applies:    informer(client, v1alpha1.ApplyResource, decodeTo[v1alpha1.Apply]),
		policies:   informer(client, v1alpha1.SyncPolicyResource, decodeTo[v1alpha1.SyncPolicy]),
		clusters:   informer(client, v1alpha1.ClusterSyncPolicyResource, decodeTo[v1alpha1.ClusterSyncPolicy]),
		namespaces: informer(client, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, decodeTo[metav1.PartialObjectMetadata]),
	}
}

func informer(client dynamic.Interface, gvr schema.GroupVersionResource, transform cache.TransformFunc) cache.SharedIndexInformer {
	api := client.Resource(gvr)
	i := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	// SetTransform fails only on an informer that already runs.
	_ = i.SetTransform(transform)
	return i
}

// start fills the caches, and then calls changed for each namespace in which something changes.
func (c *caches) start(ctx context.Context, running *sync.WaitGroup, changed func(namespace string, all bool)) error {
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{c.namespaces, c.clusters, c.policies, c.approvals, c.applies, c.plans} {
		notify := func(object any) {
			if gone, is := object.(cache.DeletedFinalStateUnknown); is {
				object = gone.Obj
			}
			meta, is := object.(metav1.Object)
			switch {
			case !is:
			case i == c.namespaces:
				changed(meta.GetName(), false)
			default:
				changed(meta.GetNamespace(), meta.GetNamespace() == "")
			}
		}
		registered, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, object any) { notify(object) },
		})
		if err != nil {
			return err
		}
		synced = append(synced, i.HasSynced, registered.HasSynced)
		running.Go(func() { i.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return errors.Join(ctx.Err(), errors.New("the caches of plans and applies did not sync"))
	}
	// Events of the first informers arrived while the others were still empty: enqueue all namespaces once
	// more.
	changed("", true)
	return nil
}

// inNamespace returns all objects of a cache in one namespace.
func inNamespace[T any](i cache.SharedIndexInformer, namespace string) []*T {
	found, err := i.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil
	}
	out := make([]*T, 0, len(found))
	for _, object := range found {
		if t, is := object.(*T); is {
			out = append(out, t)
		}
	}
	return out
}

// namespace returns the labels of a namespace, and whether it is terminating or does not exist.
func (c *caches) namespace(name string) (labels.Set, bool) {
	object, found, err := c.namespaces.GetIndexer().GetByKey(name)
	meta, is := object.(*metav1.PartialObjectMetadata)
	if err != nil || !found || !is {
		return nil, true
	}
	return meta.Labels, meta.DeletionTimestamp != nil
}

// namespaceNames returns all namespaces, sorted.
func (c *caches) namespaceNames() []string {
	return slices.Sorted(slices.Values(c.namespaces.GetIndexer().ListKeys()))
}
