package workspaces

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
)

// options give every resource storage that asks the request for its workspace. Upstream decides the codec and the prefix.
type options struct {
	upstream    generic.RESTOptionsGetter
	transformer func(schema.GroupResource) value.Transformer
	// of returns the workspace of a context: workspaceOf, unless the storage is that of one workspace.
	of func(context.Context) *Workspace
	// client returns the client that a storage calls; nil is that of the workspace.
	client func(schema.GroupResource, *kubernetes.Client) *kubernetes.Client
	// quotas count the objects that the storage writes.
	quotas *quotas
	// reservations are those of Config.
	reservations map[schema.GroupResource]amountsOf
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o options) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := o.upstream.GetRESTOptions(resource, example)
	if err != nil {
		return opts, err
	}
	if !IsBuiltIn(resource.Group) {
		opts.CountMetricPollPeriod = 0 // users choose the names of custom resources, and the metric has them
	}
	opts.Decorator = func(cfg *storagebackend.ConfigForResource, resourcePrefix string,
		_ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		open := func(client *kubernetes.Client) (storage.Interface, func(), error) {
			if o.client != nil {
				client = o.client(cfg.GroupResource, client)
			}
			client = withCompiled(cfg.GroupResource, o.transformer, client)
			versioner := storage.APIObjectVersioner{}
			store, err := etcd3.New(client, nil, cfg.Codec, newFunc, newListFunc, cfg.Prefix, resourcePrefix, cfg.GroupResource,
				o.transformer(cfg.GroupResource), cfg.LeaseManagerConfig, etcd3.NewDefaultDecoder(cfg.Codec, versioner), versioner)
			if err != nil {
				return nil, nil, fmt.Errorf("open the storage of %s: %w", cfg.GroupResource, err)
			}
			return store, sync.OnceFunc(store.Close), nil
		}
		s := &requestStore{resource: cfg.GroupResource.String(), group: cfg.GroupResource, workspace: o.of, open: open, opened: map[*Workspace]struct{}{},
			newObject: newFunc, newList: newListFunc, reserves: o.reservations[cfg.GroupResource]}
		s.life, s.end = context.WithCancel(context.Background())
		return countedStore{s, o.quotas}, s.destroy, nil
	}
	return opts, nil
}

// requestStore is the storage of one resource in all workspaces. A call goes to the workspace of its context. Without one it fails:
// there is nothing that it could reach by mistake.
//
// Custom resources have one for each version of each definition, and new ones after each change of the definition: it decodes objects by
// the schema that it was made for.
type requestStore struct {
	resource  string
	group     schema.GroupResource
	workspace func(context.Context) *Workspace
	open      func(*kubernetes.Client) (storage.Interface, func(), error)
	// newObject and newList return empty ones.
	newObject, newList func() runtime.Object
	// reserves returns the part of the limits that an object takes; nil if objects take none.
	reserves amountsOf
	// life ends with the storage: watches end then, because their objects are decoded by an old schema.
	life context.Context
	end  context.CancelFunc

	mu     sync.Mutex
	opened map[*Workspace]struct{} // the workspaces that have opened it; nil after destroy
}

var _ storage.Interface = &requestStore{}

func (s *requestStore) of(ctx context.Context) (storage.Interface, error) {
	w := s.workspace(ctx)
	if w == nil {
		return nil, fmt.Errorf("%s: %w", s.resource, errNoWorkspace)
	}
	return w.store(s)
}

// enter records that a workspace has opened the storage.
func (s *requestStore) enter(w *Workspace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil {
		return errClosed
	}
	s.opened[w] = struct{}{}
	return nil
}

// leave forgets a workspace that is being closed.
func (s *requestStore) leave(w *Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opened, w)
}

// destroy ends the watches of the storage, and closes it in all workspaces that have opened it. It may be repeated.
func (s *requestStore) destroy() {
	s.end()
	s.mu.Lock()
	opened := s.opened
	s.opened = nil
	s.mu.Unlock()
	for w := range opened {
		w.forget(s)
	}
}

func (*requestStore) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (s *requestStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	in, err := s.of(ctx)
	if err != nil {
		return err
	}
	if ctx, err = s.withNewReservation(ctx, obj); err != nil {
		return err
	}
	ctx = s.withNewCompiled(ctx, obj)
	return s.limited(ctx, key, in.Create(ctx, key, obj, out, ttl))
}

func (s *requestStore) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions,
) error {
	in, err := s.of(ctx)
	if err != nil {
		return err
	}
	return in.Delete(ctx, key, out, preconditions, validate, cached, opts)
}

func (s *requestStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if all := allOf(ctx); all != nil && all.resource == s.group {
		return all.at(s).Watch(ctx, key, opts)
	}
	in, err := s.of(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, cancel)
	context.AfterFunc(ctx, func() { stop() })
	events, err := watchIn(ctx, in, key, opts)
	if err != nil {
		cancel()
	}
	return events, err
}

// watchIn watches a resource in one workspace.
func watchIn(ctx context.Context, in storage.Interface, key string, opts storage.ListOptions) (watch.Interface, error) {
	bookmarks := opts.Predicate.AllowWatchBookmarks
	if bookmarks { // they come from the keyspace: there is no watch cache that would send them
		opts.ProgressNotify = true
		ctx = metadata.AppendToOutgoingContext(ctx, bookmarksKey, "true")
	}
	events, err := in.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok && bookmarks {
		lastBookmark(ctx, time.Until(end)-bookmarkLead, in)
	}
	return events, nil
}

// bookmarkLead is how long before its end a watch gets a last bookmark, as from kube-apiserver: the client resumes there.
const bookmarkLead = 2 * time.Second

// bookmarksKey makes watches with bookmarks a stream of their own in the keyspace's client. A request for progress is for all watches
// of a stream, and upstream would send bookmarks to clients that have not asked for them.
const bookmarksKey = "atoll-bookmarks"

// lastBookmark requests a bookmark for the watches of a resource after a time, unless the watch has ended.
func lastBookmark(ctx context.Context, after time.Duration, in storage.Interface) {
	timer := time.AfterFunc(after, func() {
		_ = in.RequestWatchProgress(ctx) // a client without it resumes at the bookmark before
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
}

func (s *requestStore) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	in, err := s.of(ctx)
	if err != nil {
		return err
	}
	return in.Get(ctx, key, opts, out)
}

func (s *requestStore) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if s.find(ctx, opts) {
		return errFound
	}
	if all := allOf(ctx); all != nil && all.resource == s.group {
		return all.at(s).List(ctx, key, opts, list)
	}
	in, err := s.of(ctx)
	if err != nil {
		return err
	}
	return in.GetList(ctx, key, opts, list)
}

func (s *requestStore) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object,
) error {
	in, err := s.of(ctx)
	if err != nil {
		return err
	}
	ctx, update = exemptDeletion(ctx, update)
	ctx, update = s.withReservation(ctx, update)
	ctx, update = s.withCompiledUpdate(ctx, update)
	return s.limited(ctx, key, in.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached))
}

// Stats counts the objects of a workspace. Upstream's loops count those of a whole server; here they count nothing.
func (s *requestStore) Stats(ctx context.Context) (storage.Stats, error) {
	in, err := s.of(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	return in.Stats(ctx)
}

func (s *requestStore) RequestWatchProgress(ctx context.Context) error {
	in, err := s.of(ctx)
	if err != nil {
		return err
	}
	return in.RequestWatchProgress(ctx)
}

func (s *requestStore) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	in, err := s.of(ctx)
	if err != nil {
		return 0, err
	}
	return in.GetCurrentResourceVersion(ctx)
}

// ReadinessCheck implements storage.Interface: a workspace is opened when a request needs it.
func (*requestStore) ReadinessCheck() error { return nil }

func (*requestStore) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// CompactRevision is unknown without a workspace; upstream uses it for metrics.
func (*requestStore) CompactRevision() int64 { return 0 }
