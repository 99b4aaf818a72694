package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

const (
	// defaultCompaction is upstream's: watches and paged lists may be this
	// far behind, and no further.
	defaultCompaction = storagebackend.DefaultCompactInterval
	// probeTimeout bounds what one health check waits for the keyspace.
	probeTimeout = storagebackend.DefaultHealthcheckTimeout
)

// keyspaceStorage gives every resource of the chain, built in or defined by a
// CRD, upstream's etcd3 store over one in-process client. It stands in for
// upstream's storage factory, which dials etcd once per resource.
type keyspaceStorage struct {
	client    *kubernetes.Client
	contact   *contact
	compactor etcd3.Compactor
	// transformers are those of the encryption configuration, if there is one.
	transformers value.ResourceTransformers
	stop         func()
	stopped      atomic.Bool
}

func newKeyspaceStorage(client *kubernetes.Client, compaction time.Duration) *keyspaceStorage {
	if compaction == 0 {
		compaction = defaultCompaction
	}
	client, contact := withContact(client, clock.RealClock{})
	// One compactor for all resources. Servers that share the keyspace take
	// turns by a compare on a key of their own, so any number may run one.
	compactor := etcd3.NewCompactor(client.Client, compaction, clock.RealClock{}, nil)
	s := &keyspaceStorage{client: client, contact: contact, compactor: compactor}
	s.stop = sync.OnceFunc(func() {
		s.stopped.Store(true)
		compactor.Stop()
		contact.stop()
	})
	return s
}

// withContact makes a client impatient. What it lacks in kubernetes.Interface it
// replaces in the client given.
func withContact(client *kubernetes.Client, clock clock.WithDelayedExecution) (*kubernetes.Client, *contact) {
	read := client.Kubernetes.Get
	contact := newContact(clock, func(ctx context.Context) error {
		_, err := read(ctx, healthKey, kubernetes.GetOptions{})
		return err
	})
	client.KV = impatientKV{client.KV, contact}
	client.Lease = impatientLease{client.Lease, contact}
	return &kubernetes.Client{Client: client.Client, Kubernetes: impatient{client.Kubernetes, contact}}, contact
}

// healthKey need not exist: what counts is that there is an answer.
const healthKey = "/registry/health"

// options wraps a RESTOptionsGetter of upstream's: all it decides (codec,
// encryption, prefix) stays; only how the storage is made is ours.
func (s *keyspaceStorage) options(upstream generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return restOptions{upstream: upstream, storage: s}
}

// customHistory is how far back watches of custom resources go on from memory.
// Clusters share such resources: one that was cut off may come back by way of
// another server, which has seen all the events that it missed, and upstream's
// minute and a quarter would send its clients away to list everything anew.
const customHistory = 5 * time.Minute

// customOptions is options for custom resources. No more is remembered than the
// keyspace keeps.
func (s *keyspaceStorage) customOptions(upstream generic.RESTOptionsGetter, retention time.Duration) generic.RESTOptionsGetter {
	return restOptions{upstream: upstream, storage: s, history: min(customHistory, cmp.Or(retention, customHistory))}
}

type restOptions struct {
	upstream generic.RESTOptionsGetter
	storage  *keyspaceStorage
	// history is how far back watches go on from memory, if that is further than
	// upstream has it.
	history time.Duration
}

func (o restOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := o.upstream.GetRESTOptions(resource, example)
	if err != nil {
		return opts, err
	}
	if cfg := opts.StorageConfig; cfg != nil && cfg.EventsHistoryWindow < o.history {
		longer := *cfg
		longer.EventsHistoryWindow = o.history
		opts.StorageConfig = &longer
	}
	opts.Decorator = o.storage.cached
	if fewReaders(resource) {
		opts.Decorator = o.storage.uncached
	}
	return opts, nil
}

// fewReaders tells of which resources there are many writes and few readers, so that a
// watch cache would be memory for nobody. Events are one, as in kube-apiserver. Bindings
// are another: each is written several times while its object is carried out, nobody
// watches them but the fleet's controllers, once in each server, and the cache would hold
// all of them, and what they were in the last minutes, as maps. So it is with the states
// of resources, of which there may be a hundred thousand, and with the pieces of plans.
func fewReaders(resource schema.GroupResource) bool {
	switch resource {
	case v1alpha1.ResourceBindingResource.GroupResource(), v1alpha1.ClusterResourceBindingResource.GroupResource(),
		infra.ResourceStateResource.GroupResource(), infra.PlanChangesResource.GroupResource(), infra.PlanSecretsResource.GroupResource():
		return true
	}
	return resource.Resource == "events" && (resource.Group == "" || resource.Group == "events.k8s.io")
}

// raw makes the store of one resource.
func (s *keyspaceStorage) raw(cfg *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, factory.DestroyFunc, error) {
	transformer := cfg.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	store, err := etcd3.New(s.client, s.compactor, cfg.Codec, newFunc, newListFunc, cfg.Prefix, resourcePrefix,
		cfg.GroupResource, transformer, cfg.LeaseManagerConfig, etcd3.NewDefaultDecoder(cfg.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("open the storage of %s: %w", cfg.GroupResource, err)
	}
	// Upstream destroys a storage once for each subresource that shares it.
	return store, sync.OnceFunc(store.Close), nil
}

func (s *keyspaceStorage) uncached(
	cfg *storagebackend.ConfigForResource, resourcePrefix string,
	_ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	if readAsStored(cfg.GroupResource) {
		as := *cfg
		as.Codec = newAsStored(cfg.Codec, newFunc())
		cfg = &as
	}
	store, destroy, err := s.raw(cfg, resourcePrefix, newFunc, newListFunc)
	if err != nil {
		return nil, nil, err
	}
	return reporting{store}, destroy, nil
}

// reporting is a store that tells those who watch it, and ask for bookmarks, how far they
// are, which upstream leaves to the watch cache. Otherwise a watch of what has not
// changed for longer than history is kept would have to list everything when it is
// opened anew, every few minutes.
type reporting struct{ storage.Interface }

func (r reporting) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	opts.ProgressNotify = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	w, err := r.Interface.Watch(ctx, key, opts)
	if err != nil || opts.ProgressNotify {
		return w, err
	}
	// Watch caches ask the keyspace how far it is, and the answer comes to all watches
	// of the client that they share, so to those as well that did not ask for bookmarks.
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) { return e, e.Type != watch.Bookmark }), nil
}

// cached puts upstream's watch cache in front of the store.
func (s *keyspaceStorage) cached(
	cfg *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	getAttrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	store, destroyStore, err := s.raw(cfg, resourcePrefix, newFunc, newListFunc)
	if err != nil {
		return nil, nil, err
	}
	watchCache, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             store,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       cfg.GroupResource,
		EventsHistoryWindow: cfg.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        getAttrs,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               cfg.Codec,
	})
	if err != nil {
		destroyStore()
		return nil, nil, fmt.Errorf("open the watch cache of %s: %w", cfg.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(watchCache, store)
	destroy := sync.OnceFunc(func() {
		delegator.Stop()
		watchCache.Stop()
		destroyStore()
	})
	return delegator, destroy, nil
}

// health is the check behind /readyz/keyspace and /healthz/keyspace: one read
// through the whole path to the database.
func (s *keyspaceStorage) health() healthz.HealthChecker {
	return healthz.NamedCheck("keyspace", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
		defer cancel()
		if _, err := s.client.Kubernetes.Get(ctx, healthKey, kubernetes.GetOptions{}); err != nil {
			return fmt.Errorf("read from the keyspace: %w", err)
		}
		return nil
	})
}

// Monitor implements upstream's metrics.Monitor: the size of the database.
func (s *keyspaceStorage) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	if s.stopped.Load() {
		return metrics.StorageMetrics{}, errors.New("the workspace has been stopped")
	}
	status, err := s.status(ctx)
	if err != nil {
		return metrics.StorageMetrics{}, fmt.Errorf("read the size of the keyspace: %w", err)
	}
	return metrics.StorageMetrics{Size: status.DbSize}, nil
}

func (s *keyspaceStorage) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	endpoint := ""
	if endpoints := s.client.Endpoints(); len(endpoints) > 0 {
		endpoint = endpoints[0]
	}
	return s.client.Status(ctx, endpoint)
}

// Close implements metrics.Monitor. Upstream closes a monitor after each
// scrape; this one holds nothing.
func (s *keyspaceStorage) Close() error { return nil }
