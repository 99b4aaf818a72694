package providers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// triedAtOnce is how many ProviderConfigs are tried at a time: each is a process.
const triedAtOnce = 2

// bySecret is the index of ProviderConfigs by the Secrets that they name.
const bySecret = "secret"

// term is what one server does for all.
type term struct {
	*Registry
	configs, secrets cache.SharedIndexInformer
	queue            workqueue.TypedRateLimitingInterface[job]
}

// job is a Provider that is to be tended, or a ProviderConfig that is to be tried. A Provider has no
// namespace.
type job struct{ namespace, name string }

// RunElected does what one server does for all, until ctx ends: it tries ProviderConfigs, makes roles of what is served, and
// lets Providers go that were deleted and of which nothing is left. Run runs meanwhile.
func (r *Registry) RunElected(ctx context.Context) error {
	t := &term{
		Registry: r,
		configs: dynamicinformer.NewFilteredDynamicInformer(r.api.Dynamic, v1alpha1.ProviderConfigResource, metav1.NamespaceAll, 0,
			cache.Indexers{bySecret: secretsOfConfig}, nil).Informer(),
		secrets: metadatainformer.NewFilteredMetadataInformer(r.api.Metadata, secretResource(), metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[job](firstRetry, lastRetry), workqueue.TypedRateLimitingQueueConfig[job]{Clock: r.config.Clock}),
	}
	if err := errors.Join(t.configs.SetTransform(into[v1alpha1.ProviderConfig]), t.secrets.SetTransform(bare)); err != nil {
		return fmt.Errorf("follow ProviderConfigs: %w", err)
	}
	return t.run(ctx)
}

func (t *term) run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	defer t.queue.ShutDown()
	synced := []cache.InformerSynced{t.objects.HasSynced}
	for _, one := range []struct {
		informer cache.SharedIndexInformer
		handle   func(before, after any)
	}{{t.objects, t.providerSeen}, {t.configs, t.configSeen}, {t.secrets, t.secretSeen}} {
		handler, err := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { one.handle(nil, o) }, UpdateFunc: one.handle, DeleteFunc: func(o any) { one.handle(o, nil) },
		})
		if err != nil {
			return fmt.Errorf("follow ProviderConfigs: %w", err)
		}
		if one.informer == t.objects {
			// It goes on after this term.
			defer func() { _ = t.objects.RemoveEventHandler(handler) }()
		} else {
			work.Go(func() { one.informer.RunWithContext(ctx) })
		}
		synced = append(synced, handler.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	for range triedAtOnce {
		work.Go(func() {
			for t.next(ctx) {
			}
		})
	}
	t.retryWithKinds(ctx)
	return nil
}

// retryWithKinds looks at everything again whenever other types are served. It returns when ctx
// ends.
func (t *term) retryWithKinds(ctx context.Context) {
	for {
		changed := t.Changed()
		for _, object := range t.objects.GetStore().List() {
			t.providerSeen(nil, object)
		}
		for _, object := range t.configs.GetStore().List() {
			t.configSeen(nil, object)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// bare leaves of a Secret what tells that it has changed.
func bare(object any) (any, error) {
	if m, ok := object.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil, nil
	}
	return object, nil
}

// secretsOfConfig indexes ProviderConfigs.
func secretsOfConfig(object any) ([]string, error) {
	config, ok := object.(*v1alpha1.ProviderConfig)
	if !ok {
		return nil, nil
	}
	settings, err := written(config)
	if err != nil {
		return nil, nil // it is refused when it is tried
	}
	var keys []string
	for _, name := range secretsIn(settings) {
		keys = append(keys, config.Namespace+"/"+name)
	}
	return keys, nil
}

func (t *term) providerSeen(before, after any) {
	is, ok := after.(*v1alpha1.Provider)
	if was, had := before.(*v1alpha1.Provider); !ok || had && was.UID == is.UID && was.DeletionTimestamp.Equal(is.DeletionTimestamp) {
		return
	}
	t.queue.Add(job{name: is.Name})
}

func (t *term) configSeen(before, after any) {
	is, ok := after.(*v1alpha1.ProviderConfig)
	if was, had := before.(*v1alpha1.ProviderConfig); !ok || had && was.UID == is.UID && was.Generation == is.Generation {
		return
	}
	t.queue.Add(job{is.Namespace, is.Name})
}

func (t *term) secretSeen(before, after any) {
	is, ok := tombless(after).(*metav1.PartialObjectMetadata)
	if after == nil {
		is, ok = tombless(before).(*metav1.PartialObjectMetadata)
	}
	if !ok {
		return
	}
	configs, err := t.configs.GetIndexer().ByIndex(bySecret, is.Namespace+"/"+is.Name)
	if err != nil {
		return // there is such an index
	}
	for _, object := range configs {
		t.configSeen(nil, object)
	}
}

func (t *term) next(ctx context.Context) bool {
	j, done := t.queue.Get()
	if done || ctx.Err() != nil {
		return false
	}
	defer t.queue.Done(j)
	var again time.Duration
	var err error
	if j.namespace == "" {
		again, err = t.tend(ctx, j.name)
	} else {
		err = t.configure(ctx, j.namespace, j.name)
	}
	switch {
	case err != nil && ctx.Err() == nil:
		var refused *OpenError
		if !errors.As(err, &refused) {
			t.config.Log.Error("infrastructure cannot be followed; trying again", "namespace", j.namespace, "name", j.name, "error", err)
		}
		t.queue.AddRateLimited(j)
	case again > 0:
		t.queue.AddAfter(j, again)
	default:
		t.queue.Forget(j)
	}
	return true
}
