package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

const (
	// defaultCompaction is upstream's default: watches and paged lists may be this far
	// behind, and no further.
	defaultCompaction = storagebackend.DefaultCompactInterval
	// probeTimeout limits how long a health check waits for the keyspace.
	probeTimeout = storagebackend.DefaultHealthcheckTimeout
)

// keyspaceStorage gives every resource of the chain, built in or defined by a CRD,
// upstream's etcd3 store over one in-process client. It replaces upstream's storage
// factory, which dials etcd once per resource, and adds the encryption by default.
type keyspaceStorage struct {
	client       *kubernetes.Client
	reachability *reachability
	compactor    etcd3.Compactor
	// probe reads from all parts of the database, and returns its own error.
	probe      func(context.Context) error
	encryption *encryption // nil: nothing is encrypted
	stop       func()
	stopped    atomic.Bool
}

func newKeyspaceStorage(client *kubernetes.Client, probe func(context.Context) error, compaction time.Duration, log *slog.Logger) *keyspaceStorage {
	if compaction == 0 {
		compaction = defaultCompaction
	}
	if probe == nil {
		probe = readHealthKey(client)
	}
	client, contact := guardClient(client, probe, clock.RealClock{}, func(cause error) { logContact(log, cause) })
	// One compactor for all resources. Servers that share the keyspace coordinate by a
	// compare on a key of their own, so any number may run one.
	compactor := etcd3.NewCompactor(client.Client, compaction, clock.RealClock{}, nil)
	s := &keyspaceStorage{client: client, reachability: contact, compactor: compactor, probe: probe}
	s.stop = sync.OnceFunc(func() {
		s.stopped.Store(true)
		s.encryption.close()
		compactor.Stop()
		contact.stop()
	})
	return s
}

// logContact names the cause once: the errors of calls during an outage are many, and do not.
func logContact(log *slog.Logger, cause error) {
	if cause == nil {
		log.Warn("the datastore serves again")
		return
	}
	// The database's client lists its attempts on lines of their own.
	log.Error("the datastore does not serve", "cause", strings.Join(strings.Fields(cause.Error()), " "))
}

// guardClient guards a client. It also replaces, in the given client, the calls that
// kubernetes.Interface lacks.
func guardClient(client *kubernetes.Client, whole func(context.Context) error, clock clock.WithDelayedExecution, tell func(cause error)) (*kubernetes.Client, *reachability) {
	contact := newReachability(clock, readHealthKey(client), whole, tell)
	client.KV = guardedKV{client.KV, contact}
	client.Lease = guardedLease{client.Lease, contact}
	return &kubernetes.Client{Client: client.Client, Kubernetes: guardedClient{client.Kubernetes, contact}}, contact
}

// readHealthKey returns a function that reads a key. Its error is the database's.
func readHealthKey(client *kubernetes.Client) func(context.Context) error {
	read := client.Kubernetes.Get
	return func(ctx context.Context) error {
		_, err := read(ctx, healthKey, kubernetes.GetOptions{})
		return err
	}
}

// healthKey need not exist: any answer is enough.
const healthKey = "/registry/health"

// options wraps an upstream RESTOptionsGetter. Upstream's decisions (codec, prefix)
// stay; only the creation of the storage and its encryption are replaced.
func (s *keyspaceStorage) options(upstream generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return restOptions{upstream: upstream, storage: s}
}

// customHistory is how far back watches of custom resources can start from the watch
// cache. Clusters share such resources. A cluster that was cut off may reconnect to
// another server, which has seen all the events that the cluster missed. With
// upstream's minute and a quarter, its clients would have to list everything again.
const customHistory = 5 * time.Minute

// customOptions is options for custom resources. The watch cache keeps no more history
// than the keyspace.
func (s *keyspaceStorage) customOptions(upstream generic.RESTOptionsGetter, retention time.Duration) generic.RESTOptionsGetter {
	return restOptions{upstream: upstream, storage: s, history: min(customHistory, cmp.Or(retention, customHistory))}
}

// workspaceDeletions is how many Workspaces a request that deletes all of them marks at the
// same time. These writes share commits. With upstream's one, each waits for its own.
const workspaceDeletions = 16

type restOptions struct {
	upstream generic.RESTOptionsGetter
	storage  *keyspaceStorage
	// history is how far back watches can start from the watch cache, if that is
	// further than upstream's default.
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
	if resource == tenancy.WorkspaceResource.GroupResource() {
		opts.DeleteCollectionWorkers = workspaceDeletions
	}
	opts.Decorator = o.storage.cached
	if fewReaders(resource) {
		opts.Decorator = o.storage.uncached
	}
	return opts, nil
}

// fewReaders reports whether a resource has many writes and few readers, so that a
// watch cache would only waste memory. Events are one, as in kube-apiserver.
// ResourceBindings are another: each is written several times while its object is
// rolled out, and only the fleet's controllers watch them, once in each server. The
// cache would hold all bindings and their versions of the last minutes, as maps. The
// same applies to the states of resources, of which there may be a hundred thousand,
// and to the chunks of plans. Workspaces are watched once by each server, and there may
// be tens of thousands, nearly all asleep.
func fewReaders(resource schema.GroupResource) bool {
	switch resource {
	case v1alpha1.ResourceBindingResource.GroupResource(), v1alpha1.ClusterResourceBindingResource.GroupResource(),
		infra.ResourceStateResource.GroupResource(), infra.PlanChangesResource.GroupResource(), infra.PlanSecretsResource.GroupResource(),
		tenancy.WorkspaceResource.GroupResource():
		return true
	}
	return resource.Resource == "events" && (resource.Group == "" || resource.Group == "events.k8s.io")
}

// raw creates the store of one resource.
func (s *keyspaceStorage) raw(cfg *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	transformer := &decryptionFailures{Transformer: s.encryption.transformer(cfg.GroupResource), clock: clock.RealClock{}}
	store, err := etcd3.New(s.client, s.compactor, cfg.Codec, newFunc, newListFunc, cfg.Prefix, resourcePrefix,
		cfg.GroupResource, transformer, cfg.LeaseManagerConfig, etcd3.NewDefaultDecoder(cfg.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("open the storage of %s: %w", cfg.GroupResource, err)
	}
	// Upstream destroys a storage once for each subresource that shares it.
	return pacedStore{store, transformer}, sync.OnceFunc(store.Close), nil
}

func (s *keyspaceStorage) uncached(
	cfg *storagebackend.ConfigForResource, resourcePrefix string,
	_ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	if skipsCoercion(cfg.GroupResource) {
		as := *cfg
		as.Codec = newUncoercedCodec(cfg.Codec, newFunc())
		cfg = &as
	}
	store, destroy, err := s.raw(cfg, resourcePrefix, newFunc, newListFunc)
	if err != nil {
		return nil, nil, err
	}
	return progressStore{store}, destroy, nil
}

// progressStore is a store that sends progress bookmarks to watchers that ask for them.
// Upstream leaves that to the watch cache. Without bookmarks, a watch of objects that
// have not changed for longer than the history is kept would have to list everything
// each time it is reopened, every few minutes.
type progressStore struct{ storage.Interface }

func (r progressStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	opts.ProgressNotify = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	w, err := r.Interface.Watch(ctx, key, opts)
	if err != nil || opts.ProgressNotify {
		return w, err
	}
	// Watch caches request progress from the keyspace, and the response goes to all
	// watches that share the client. Drop it for watches that did not ask for bookmarks.
	return controllers.FilterWatch(w, func(e watch.Event) (watch.Event, bool) { return e, e.Type != watch.Bookmark }), nil
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
	return bufferedStore{delegator}, destroy, nil
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

// Close implements metrics.Monitor. Upstream closes a monitor after each scrape; this
// one holds no resources.
func (s *keyspaceStorage) Close() error { return nil }
