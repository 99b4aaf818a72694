package placing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/approval"
)

// Policies reports which workloads change in member clusters only by applied plans. Each server has
// its own, because the fleet's scheduler may run in any of them. It is safe for concurrent use.
type Policies struct {
	dynamic dynamic.Interface
	clock   clock.WithTicker

	policies   controllers.Cache[v1alpha1.SyncPolicy]
	clusters   controllers.Cache[v1alpha1.ClusterSyncPolicy]
	namespaces controllers.Cache[metav1.PartialObjectMetadata]
	synced     chan struct{}

	mu        sync.RWMutex
	parsed    map[string]*approval.Policy // by namespace/name; nil if it does not apply to workloads
	listeners map[int]func()
	listened  int
}

// NewPolicies returns Policies that are empty until Run.
func NewPolicies(client dynamic.Interface, c clock.WithTicker) *Policies {
	return &Policies{
		dynamic: client, clock: c, synced: make(chan struct{}),
		policies:   controllers.NewCache[v1alpha1.SyncPolicy](client, v1alpha1.SyncPolicyResource, controllers.CacheOptions{}),
		clusters:   controllers.NewCache[v1alpha1.ClusterSyncPolicy](client, v1alpha1.ClusterSyncPolicyResource, controllers.CacheOptions{}),
		namespaces: controllers.NewCache[metav1.PartialObjectMetadata](client, kschema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, controllers.CacheOptions{}),
		parsed:     map[string]*approval.Policy{}, listeners: map[int]func(){},
	}
}

// Run watches policies until ctx ends. It may be called once.
func (w *Policies) Run(ctx context.Context) error {
	if err := waitServed(ctx, w.dynamic, w.clock, v1alpha1.SyncPolicyResource, v1alpha1.ClusterSyncPolicyResource); err != nil {
		return nil // ctx ended
	}
	var running sync.WaitGroup
	defer running.Wait()
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{w.policies.Informer, w.clusters.Informer, w.namespaces.Informer} {
		registered, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(is any) { w.changed(nil, is) },
			UpdateFunc: w.changed,
			DeleteFunc: func(was any) {
				if gone, is := was.(cache.DeletedFinalStateUnknown); is {
					was = gone.Obj
				}
				w.changed(was, nil)
			},
		})
		if err != nil {
			return fmt.Errorf("watch policies for workloads: %w", err)
		}
		synced = append(synced, registered.HasSynced)
		running.Go(func() { i.RunWithContext(ctx) })
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		close(w.synced)
	}
	<-ctx.Done()
	return nil
}

// waitServed waits until the API serves these resources: a server that has just started installs their
// types. An informer that starts earlier backs off for longer than that takes.
func waitServed(ctx context.Context, client dynamic.Interface, c clock.WithTicker, resources ...kschema.GroupVersionResource) error {
	for {
		var err error
		for _, gvr := range resources {
			if _, one := client.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1}); one != nil {
				err = one
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.After(200 * time.Millisecond):
		}
	}
}

// changed handles a policy or namespace that was created, updated (both are set) or deleted.
func (w *Policies) changed(was, is any) {
	var old, now *metav1.ObjectMeta
	if was != nil {
		old = w.meta(was)
	}
	if is != nil {
		now = w.meta(is)
	}
	_, namespace := is.(*metav1.PartialObjectMetadata)
	switch {
	case old == nil && now == nil:
		return
	case namespace && (old == nil || maps.Equal(old.Labels, now.Labels)):
		return // its objects come later, or their policies are unchanged
	case old != nil && now != nil && old.UID == now.UID && old.Generation == now.Generation && !namespace:
		return // a status update
	}
	if _, gone := was.(*metav1.PartialObjectMetadata); gone && is == nil {
		return
	}
	w.mu.Lock()
	switch is := is.(type) {
	case *v1alpha1.SyncPolicy:
		w.parsed[is.Namespace+"/"+is.Name] = aboutWorkloads(approval.Parse(&is.ObjectMeta, &is.Spec, false, nil))
	case *v1alpha1.ClusterSyncPolicy:
		w.parsed["/"+is.Name] = aboutWorkloads(approval.Parse(&is.ObjectMeta, &is.Spec.SyncPolicySpec, true, is.Spec.Namespaces))
	case nil:
		delete(w.parsed, old.Namespace+"/"+old.Name)
	}
	listeners := slices.Collect(maps.Values(w.listeners))
	w.mu.Unlock()
	for _, notify := range listeners {
		notify()
	}
}

func (w *Policies) meta(object any) *metav1.ObjectMeta {
	switch o := object.(type) {
	case *v1alpha1.SyncPolicy:
		return &o.ObjectMeta
	case *v1alpha1.ClusterSyncPolicy:
		return &o.ObjectMeta
	case *metav1.PartialObjectMetadata:
		return &o.ObjectMeta
	}
	return nil
}

func aboutWorkloads(p *approval.Policy) *approval.Policy {
	if !p.AppliesTo(v1alpha1.SyncWorkloads) {
		return nil
	}
	return p
}

// Ready returns when all policies are known that existed when it was called, or with an error when ctx ends.
func (w *Policies) Ready(ctx context.Context) error {
	select {
	case <-w.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Manual reports whether objects of a namespace with these labels change in clusters only by applied plans.
// With nil labels, it reports whether any do.
func (w *Policies) Manual(namespace string, set map[string]string) bool {
	var all []*approval.Policy
	w.mu.RLock()
	for key, p := range w.parsed {
		if p != nil && (p.Cluster || key == namespace+"/"+p.Name) {
			all = append(all, p)
		}
	}
	w.mu.RUnlock()
	if len(all) == 0 {
		return false
	}
	var of labels.Set
	if meta, found := w.namespaces.Get(namespace); found {
		of = meta.Labels
	}
	return approval.RequiresPlan(approval.Rank(all, of), set)
}

// OnChange calls notify whenever Manual may return something else than before, until cancel is called. notify
// must not block.
func (w *Policies) OnChange(notify func()) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listened++
	at := w.listened
	w.listeners[at] = notify
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listeners, at)
	}
}
