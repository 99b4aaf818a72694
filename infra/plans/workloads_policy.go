package plans

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
)

// WorkloadPolicies tell which workloads change in member clusters by applied plans only. Every server has its own, because
// any may be the one in which the fleet's scheduler runs. It is safe for concurrent use.
type WorkloadPolicies struct {
	dynamic dynamic.Interface
	clock   clock.WithTicker

	policies, clusters, namespaces cache.SharedIndexInformer
	filled                         chan struct{}

	mu        sync.RWMutex
	read      map[string]*policy // by namespace/name; nil if it is not about workloads
	listeners map[int]func()
	listened  int
}

// NewWorkloadPolicies gives those that know nothing until Run.
func NewWorkloadPolicies(client dynamic.Interface, c clock.WithTicker) *WorkloadPolicies {
	return &WorkloadPolicies{
		dynamic: client, clock: c, filled: make(chan struct{}),
		policies:   informer(client, v1alpha1.SyncPolicyResource, into[v1alpha1.SyncPolicy]),
		clusters:   informer(client, v1alpha1.ClusterSyncPolicyResource, into[v1alpha1.ClusterSyncPolicy]),
		namespaces: informer(client, kschema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, into[metav1.PartialObjectMetadata]),
		read:       map[string]*policy{}, listeners: map[int]func(){},
	}
}

// Run follows policies until ctx ends. It is called once.
func (w *WorkloadPolicies) Run(ctx context.Context) error {
	if err := w.served(ctx); err != nil {
		return nil // ctx ended
	}
	var running sync.WaitGroup
	defer running.Wait()
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{w.policies, w.clusters, w.namespaces} {
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
			return fmt.Errorf("follow policies about workloads: %w", err)
		}
		synced = append(synced, registered.HasSynced)
		running.Go(func() { i.RunWithContext(ctx) })
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		close(w.filled)
	}
	<-ctx.Done()
	return nil
}

// served waits until there are policies in the API: a server that has just been started installs their types. An
// informer that begins before that rests for longer than it takes.
func (w *WorkloadPolicies) served(ctx context.Context) error {
	for {
		var err error
		for _, gvr := range []kschema.GroupVersionResource{v1alpha1.SyncPolicyResource, v1alpha1.ClusterSyncPolicyResource} {
			if _, one := w.dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1}); one != nil {
				err = one
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.clock.After(200 * time.Millisecond):
		}
	}
}

// changed takes in a policy or namespace that came, changed (both are there) or went.
func (w *WorkloadPolicies) changed(was, is any) {
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
		return // what is in it comes later, or is under what it was under
	case old != nil && now != nil && old.UID == now.UID && old.Generation == now.Generation && !namespace:
		return // its status
	}
	if _, gone := was.(*metav1.PartialObjectMetadata); gone && is == nil {
		return
	}
	w.mu.Lock()
	switch is := is.(type) {
	case *v1alpha1.SyncPolicy:
		w.read[is.Namespace+"/"+is.Name] = aboutWorkloads(readPolicy(&is.ObjectMeta, &is.Spec, false, nil))
	case *v1alpha1.ClusterSyncPolicy:
		w.read["/"+is.Name] = aboutWorkloads(readPolicy(&is.ObjectMeta, &is.Spec.SyncPolicySpec, true, is.Spec.Namespaces))
	case nil:
		delete(w.read, old.Namespace+"/"+old.Name)
	}
	listeners := slices.Collect(maps.Values(w.listeners))
	w.mu.Unlock()
	for _, notify := range listeners {
		notify()
	}
}

func (w *WorkloadPolicies) meta(object any) *metav1.ObjectMeta {
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

func aboutWorkloads(p *policy) *policy {
	if !p.about(v1alpha1.SyncWorkloads) {
		return nil
	}
	return p
}

// Ready returns when all policies are known that there were when it was called, or with an error when ctx ends.
func (w *WorkloadPolicies) Ready(ctx context.Context) error {
	select {
	case <-w.filled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Manual tells whether objects of a namespace with these labels change in clusters by applied plans only; if they are nil,
// whether any does.
func (w *WorkloadPolicies) Manual(namespace string, set map[string]string) bool {
	var all []*policy
	w.mu.RLock()
	for key, p := range w.read {
		if p != nil && (p.cluster || key == namespace+"/"+p.name) {
			all = append(all, p)
		}
	}
	w.mu.RUnlock()
	if len(all) == 0 {
		return false
	}
	var of labels.Set
	if object, found, err := w.namespaces.GetStore().GetByKey(namespace); err == nil && found {
		if meta, is := object.(*metav1.PartialObjectMetadata); is {
			of = meta.Labels
		}
	}
	return manually(ranked(all, of), set)
}

// OnChange calls notify, which does not block, whenever Manual may answer otherwise than before, until it is cancelled.
func (w *WorkloadPolicies) OnChange(notify func()) (cancel func()) {
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
