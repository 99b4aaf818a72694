package providercontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// configureWorkers is the number of ProviderConfigs that are tested concurrently. Each test is a
// process.
const configureWorkers = 2

// bySecret is the index of ProviderConfigs by the Secrets that they reference.
const bySecret = "secret"

// electedSession does the work of the elected server.
type electedSession struct {
	*Registry
	configs, secrets cache.SharedIndexInformer
	queue            workqueue.TypedRateLimitingInterface[workItem]
}

// workItem is a Provider to reconcile or a ProviderConfig to test. A Provider has no namespace.
type workItem struct{ namespace, name string }

// RunElected does the work of the elected server until ctx ends: it tests ProviderConfigs, creates
// the roles for served types, and finalizes deleted Providers that are no longer used. Run must be
// running.
func (r *Registry) RunElected(ctx context.Context) error {
	t := &electedSession{
		Registry: r,
		configs: controllers.NewCache[v1alpha1.ProviderConfig](r.clients.Dynamic, v1alpha1.ProviderConfigResource,
			controllers.CacheOptions{Indexers: cache.Indexers{bySecret: secretsOfConfig}}).Informer,
		secrets: controllers.Transformed(metadatainformer.NewFilteredMetadataInformer(
			r.clients.Metadata, secretResource(), metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(), versionOnly),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[workItem](firstRetry, lastRetry), workqueue.TypedRateLimitingQueueConfig[workItem]{Name: "infra_provider_configs", Clock: r.config.Clock}),
	}
	return t.run(ctx)
}

func (t *electedSession) run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	defer t.queue.ShutDown()
	synced := []cache.InformerSynced{t.objects.HasSynced}
	for _, one := range []struct {
		informer cache.SharedIndexInformer
		handle   func(before, after any)
	}{{t.objects, t.enqueueProvider}, {t.configs, t.enqueueConfig}, {t.secrets, t.enqueueSecretUsers}} {
		handler, err := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { one.handle(nil, o) }, UpdateFunc: one.handle, DeleteFunc: func(o any) { one.handle(o, nil) },
		})
		if err != nil {
			return fmt.Errorf("watch ProviderConfigs: %w", err)
		}
		if one.informer == t.objects {
			// The Registry owns this informer, which outlives the session.
			defer func() { _ = t.objects.RemoveEventHandler(handler) }()
		} else {
			work.Go(func() { one.informer.RunWithContext(ctx) })
		}
		synced = append(synced, handler.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	for range configureWorkers {
		work.Go(func() {
			for t.next(ctx) {
			}
		})
	}
	t.requeueOnChange(ctx)
	return nil
}

// requeueOnChange requeues everything whenever the served types change. It returns when ctx ends.
func (t *electedSession) requeueOnChange(ctx context.Context) {
	for {
		changed := t.Changed()
		for _, object := range t.objects.GetStore().List() {
			t.enqueueProvider(nil, object)
		}
		for _, object := range t.configs.GetStore().List() {
			t.enqueueConfig(nil, object)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// versionOnly strips a Secret's metadata to the fields that show a change.
func versionOnly(object any) (any, error) {
	if m, ok := object.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil, nil
	}
	return object, nil
}

// secretsOfConfig is the index function of bySecret.
func secretsOfConfig(object any) ([]string, error) {
	config, ok := object.(*v1alpha1.ProviderConfig)
	if !ok {
		return nil, nil
	}
	settings, err := configurationOf(config)
	if err != nil {
		return nil, nil // the test of the ProviderConfig reports the error
	}
	var keys []string
	for _, name := range secretsIn(settings) {
		keys = append(keys, config.Namespace+"/"+name)
	}
	return keys, nil
}

func (t *electedSession) enqueueProvider(before, after any) {
	is, ok := after.(*v1alpha1.Provider)
	if was, had := before.(*v1alpha1.Provider); !ok || had && was.UID == is.UID && was.DeletionTimestamp.Equal(is.DeletionTimestamp) {
		return
	}
	t.queue.Add(workItem{name: is.Name})
}

func (t *electedSession) enqueueConfig(before, after any) {
	is, ok := after.(*v1alpha1.ProviderConfig)
	if was, had := before.(*v1alpha1.ProviderConfig); !ok || had && was.UID == is.UID && was.Generation == is.Generation && was.DeletionTimestamp.Equal(is.DeletionTimestamp) {
		return
	}
	t.queue.Add(workItem{is.Namespace, is.Name})
}

func (t *electedSession) enqueueSecretUsers(before, after any) {
	is, ok := untombstone(after).(*metav1.PartialObjectMetadata)
	if after == nil {
		is, ok = untombstone(before).(*metav1.PartialObjectMetadata)
	}
	if !ok {
		return
	}
	configs, err := t.configs.GetIndexer().ByIndex(bySecret, is.Namespace+"/"+is.Name)
	if err != nil {
		return // the index exists
	}
	for _, object := range configs {
		t.enqueueConfig(nil, object)
	}
}

func (t *electedSession) next(ctx context.Context) bool {
	j, done := t.queue.Get()
	if done || ctx.Err() != nil {
		return false
	}
	defer t.queue.Done(j)
	var again time.Duration
	var err error
	if j.namespace == "" {
		again, err = t.reconcileProvider(ctx, j.name)
	} else {
		again, err = t.reconcileConfig(ctx, j.namespace, j.name)
	}
	switch {
	case err != nil && ctx.Err() == nil:
		var refused *OpenError
		if !errors.As(err, &refused) {
			t.config.Log.Error("reconcile failed; retrying", "namespace", j.namespace, "name", j.name, "error", err)
		}
		t.queue.AddRateLimited(j)
	case again > 0:
		t.queue.AddAfter(j, again)
	default:
		t.queue.Forget(j)
	}
	return true
}
