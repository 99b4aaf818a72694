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

// caches hold what the desk decides by. Nobody changes what comes from them.
type caches struct {
	plans, approvals, applies, policies, clusters, namespaces cache.SharedIndexInformer
}

func newCaches(client dynamic.Interface) *caches {
	return &caches{
		plans:      informer(client, v1alpha1.PlanResource, into[v1alpha1.Plan]),
		approvals:  informer(client, v1alpha1.ApprovalResource, into[v1alpha1.Approval]),
		applies:    informer(client, v1alpha1.ApplyResource, into[v1alpha1.Apply]),
		policies:   informer(client, v1alpha1.SyncPolicyResource, into[v1alpha1.SyncPolicy]),
		clusters:   informer(client, v1alpha1.ClusterSyncPolicyResource, into[v1alpha1.ClusterSyncPolicy]),
		namespaces: informer(client, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, into[metav1.PartialObjectMetadata]),
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
	// Neither fails on an informer that does not run yet.
	_ = i.SetTransform(transform)
	return i
}

// start fills the caches, and then tells of each namespace in which something has changed.
func (c *caches) start(ctx context.Context, running *sync.WaitGroup, changed func(namespace string, all bool)) error {
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{c.namespaces, c.clusters, c.policies, c.approvals, c.applies, c.plans} {
		tell := func(object any) {
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
			AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(_, object any) { tell(object) },
		})
		if err != nil {
			return err
		}
		synced = append(synced, i.HasSynced, registered.HasSynced)
		running.Go(func() { i.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return errors.Join(ctx.Err(), errors.New("the caches of plans and applies could not be filled"))
	}
	// What came first was told of while the rest was not there yet.
	changed("", true)
	return nil
}

// inNamespace gives all that a cache has there.
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

// namespace gives the labels of one, and whether it is being deleted, or is not there.
func (c *caches) namespace(name string) (labels.Set, bool) {
	object, found, err := c.namespaces.GetIndexer().GetByKey(name)
	meta, is := object.(*metav1.PartialObjectMetadata)
	if err != nil || !found || !is {
		return nil, true
	}
	return meta.Labels, meta.DeletionTimestamp != nil
}

// busy are the namespaces that there may be something to do in.
func (c *caches) busy() []string {
	return slices.Sorted(slices.Values(c.namespaces.GetIndexer().ListKeys()))
}
