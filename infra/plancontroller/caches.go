package plancontroller

import (
	"context"
	"errors"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// caches hold the objects that the reconciler decides by.
type caches struct {
	plans           controllers.Cache[v1alpha1.Plan]
	approvals       controllers.Cache[v1alpha1.Approval]
	applies         controllers.Cache[v1alpha1.Apply]
	policies        controllers.Cache[v1alpha1.SyncPolicy]
	clusterPolicies controllers.Cache[v1alpha1.ClusterSyncPolicy]
	namespaces      controllers.Cache[metav1.PartialObjectMetadata]
}

func newCaches(client dynamic.Interface) *caches {
	var all controllers.CacheOptions
	return &caches{
		plans:           controllers.NewCache[v1alpha1.Plan](client, v1alpha1.PlanResource, all),
		approvals:       controllers.NewCache[v1alpha1.Approval](client, v1alpha1.ApprovalResource, all),
		applies:         controllers.NewCache[v1alpha1.Apply](client, v1alpha1.ApplyResource, all),
		policies:        controllers.NewCache[v1alpha1.SyncPolicy](client, v1alpha1.SyncPolicyResource, all),
		clusterPolicies: controllers.NewCache[v1alpha1.ClusterSyncPolicy](client, v1alpha1.ClusterSyncPolicyResource, all),
		namespaces:      controllers.NewCache[metav1.PartialObjectMetadata](client, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, all),
	}
}

// start fills the caches, and then calls changed for each namespace in which something changes.
func (c *caches) start(ctx context.Context, running *sync.WaitGroup, changed func(namespace string, all bool)) error {
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{c.namespaces.Informer, c.clusterPolicies.Informer, c.policies.Informer, c.approvals.Informer, c.applies.Informer, c.plans.Informer} {
		notify := func(object any) {
			if gone, is := object.(cache.DeletedFinalStateUnknown); is {
				object = gone.Obj
			}
			meta, is := object.(metav1.Object)
			switch {
			case !is:
			case i == c.namespaces.Informer:
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

// namespace returns the labels of a namespace, and whether it is terminating or does not exist.
func (c *caches) namespace(name string) (labels.Set, bool) {
	meta, found := c.namespaces.Get(name)
	if !found {
		return nil, true
	}
	return meta.Labels, meta.DeletionTimestamp != nil
}

// namespaceNames returns all namespaces, sorted.
func (c *caches) namespaceNames() []string {
	return slices.Sorted(slices.Values(c.namespaces.Informer.GetIndexer().ListKeys()))
}
