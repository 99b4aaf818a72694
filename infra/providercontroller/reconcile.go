package providercontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// installWorkers is the number of Providers that are installed concurrently.
	installWorkers = 4
	// firstRetry is the first backoff. It doubles with each consecutive failure, up to lastRetry.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	// developmentPoll is the interval at which a development program is checked for changes.
	developmentPoll = 3 * time.Second
	// unusedPackageTTL is how long a package is kept that no Provider references.
	unusedPackageTTL = 24 * time.Hour
)

// providerEntry is the local state of one Provider. It is guarded by Registry.mu. What it points to
// is immutable.
type providerEntry struct {
	object *v1alpha1.Provider
	// pack is the package whose types are served, nil if there has never been one.
	pack *installedPackage
	// usable reports whether pack matches the spec and is in the store.
	usable bool
	// attempted identifies the spec of the last attempt to install, and failure is its error.
	attempted string
	failure   *failure
	retry     wait.Backoff // the pause after the next failure
	notBefore time.Time
	// attempting identifies the spec that is being installed; interrupt cancels that, and step is
	// its progress.
	attempting   string
	interrupt    context.CancelFunc
	step         string
	stepReported time.Time
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstRetry, Factor: 2, Steps: 10, Cap: lastRetry}
}

func newInformer(client dynamic.Interface) cache.SharedIndexInformer {
	return controllers.NewCache[v1alpha1.Provider](client, v1alpha1.ProviderResource, controllers.CacheOptions{}).Informer
}

// Run follows Providers until ctx ends. Their CRD must be served.
func (r *Registry) Run(ctx context.Context) error {
	handler, err := r.objects.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { r.enqueue(nil, o) }, UpdateFunc: r.enqueue, DeleteFunc: func(o any) { r.enqueue(o, nil) },
	})
	if err != nil {
		return fmt.Errorf("watch Providers: %w", err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer r.queue.ShutDown()
	work.Go(func() { r.objects.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), r.objects.HasSynced, handler.HasSynced) {
		return nil
	}
	r.restore()
	for range installWorkers {
		work.Go(func() {
			for r.next(ctx) {
			}
		})
	}
	work.Go(func() { r.instances.sweepLoop(ctx) })
	work.Go(func() { r.collect(ctx) })
	<-ctx.Done()
	return nil
}

// enqueue enqueues a Provider, unless only its status changed: reconciling writes the status, and
// the servers would trigger each other.
func (r *Registry) enqueue(before, after any) {
	was, _ := untombstone(before).(*v1alpha1.Provider)
	is, _ := untombstone(after).(*v1alpha1.Provider)
	switch {
	case is == nil && was == nil:
		return
	case is == nil:
		is = was
	case was != nil && was.UID == is.UID && was.Generation == is.Generation && was.DeletionTimestamp.Equal(is.DeletionTimestamp):
		return
	}
	r.mu.Lock()
	if e := r.entries[is.Name]; e != nil && e.interrupt != nil && (after == nil || e.attempting != installKey(&is.Spec)) {
		e.interrupt()
	}
	r.mu.Unlock()
	r.queue.Add(is.Name)
}

func untombstone(object any) any {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return object
}

// provider returns a Provider from the cache, nil if it does not exist.
func (r *Registry) provider(name string) *v1alpha1.Provider {
	object, _, _ := r.objects.GetStore().GetByKey(name) // a cache returns no errors
	p, _ := object.(*v1alpha1.Provider)
	return p
}

// restore serves the types that were served before the restart. It starts and verifies nothing:
// types stay served even if their package is gone.
func (r *Registry) restore() {
	present := map[string]bool{}
	waiting := map[string]bool{}
	entries := map[string]*providerEntry{}
	for _, object := range r.objects.GetStore().List() {
		p, ok := object.(*v1alpha1.Provider)
		if !ok {
			continue
		}
		present[p.Name] = true
		e := &providerEntry{object: p, retry: newBackoff()}
		entries[p.Name] = e
		if e.pack = r.cachedPackage(p); e.pack == nil {
			waiting[p.Name] = true
		}
	}
	if err := r.cache.sweep(present); err != nil {
		r.config.Log.Warn("remove cached data of deleted providers failed", "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries, r.waiting = entries, waiting
	r.rebuildTable()
	r.markProcessed("")
}

func (r *Registry) cachedPackage(p *v1alpha1.Provider) *installedPackage {
	last, err := r.cache.last(p.Name)
	if err != nil || last.Provider != p.UID {
		return nil
	}
	catalog, err := r.cache.catalog(last.Content)
	if err != nil {
		return nil
	}
	return &installedPackage{packageRecord: *last, catalog: catalog, names: schema.Names(catalog.Resources(), catalog.DataSources())}
}

// markProcessed records that a Provider was processed, and closes synced after the last one. The
// caller holds the lock.
func (r *Registry) markProcessed(name string) {
	delete(r.waiting, name)
	if len(r.waiting) > 0 {
		return
	}
	select {
	case <-r.synced:
	default:
		close(r.synced)
	}
}

// rebuildTable rebuilds the table of served types. The caller holds the lock.
func (r *Registry) rebuildTable() {
	var all []candidate
	for name, e := range r.entries {
		if e.pack == nil {
			continue
		}
		patterns := e.object.Spec.Types
		if len(patterns) == 0 {
			patterns = []string{everything}
		}
		all = append(all, candidate{
			name: name, created: e.object.CreationTimestamp.Time, patterns: patterns, deleting: e.object.DeletionTimestamp != nil,
			catalog: e.pack.catalog, all: e.pack.names, revision: e.pack.revision(), source: sourceAddress(e.pack.Source),
		})
	}
	r.table = newTable(all)
	close(r.changed)
	r.changed = make(chan struct{})
	// Types served by one Provider are denied to others, so all statuses may change.
	for name := range r.entries {
		r.queue.Add(name)
	}
	r.notifyWaiters()
}

// notifyWaiters wakes everyone who waits for an entry to change. The caller holds the lock.
func (r *Registry) notifyWaiters() {
	close(r.entryChanged)
	r.entryChanged = make(chan struct{})
}

// next processes one Provider. It returns false when the queue is shut down.
func (r *Registry) next(ctx context.Context) bool {
	name, done := r.queue.Get()
	if done || ctx.Err() != nil {
		return false
	}
	defer r.queue.Done(name)
	if err := r.reconcile(ctx, name); err != nil && ctx.Err() == nil {
		r.config.Log.Error("reconcile failed; retrying", "provider", name, "error", err)
		r.queue.AddAfter(name, firstRetry)
	}
	return true
}

// reconcile installs a Provider's package as its spec says, and writes its status.
func (r *Registry) reconcile(ctx context.Context, name string) error {
	p := r.provider(name)
	if p == nil {
		return r.forget(name)
	}
	if err := r.ensureFinalizer(ctx, p); err != nil {
		return err
	}
	try, again := r.observe(p)
	if try && !r.attempt(ctx, p) {
		return nil // interrupted: it is in the queue again
	}
	if !try && again > 0 {
		r.queue.AddAfter(name, again)
	}
	return r.writeStatusOf(ctx, p)
}

// observe takes over the Provider's current spec. It returns whether to install now, or else when
// to check again.
func (r *Registry) observe(p *v1alpha1.Provider) (try bool, again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[p.Name]
	if e == nil || e.object.UID != p.UID {
		e = &providerEntry{object: p, pack: r.cachedPackage(p), retry: newBackoff()}
		r.entries[p.Name] = e
		r.rebuildTable()
	}
	before := e.object
	e.object = p
	if before.Generation != p.Generation && (e.failure != nil || e.attempted != installKey(&p.Spec)) {
		e.attempted, e.usable, e.failure, e.retry = "", false, nil, newBackoff()
	}
	if before.Generation != p.Generation || (before.DeletionTimestamp == nil) != (p.DeletionTimestamp == nil) {
		r.rebuildTable()
	}
	now := r.config.Clock.Now()
	switch {
	case e.attempted != installKey(&p.Spec):
		return true, 0
	case e.usable && e.pack.development != nil:
		return e.pack.rebuilt(), developmentPoll
	case e.usable:
		return false, 0
	case e.failure != nil && e.failure.permanent:
		return false, 0
	case e.failure != nil && now.Before(e.notBefore):
		return false, e.notBefore.Sub(now)
	}
	return true, 0
}

// attempt tries once to install a Provider's package. It returns false if it was interrupted.
func (r *Registry) attempt(ctx context.Context, p *v1alpha1.Provider) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := installKey(&p.Spec)
	r.mu.Lock()
	e := r.entries[p.Name]
	e.attempting, e.interrupt, e.step = key, cancel, ""
	r.mu.Unlock()

	got, failed := r.install(ctx, p, func(now packages.StepProgress) { r.reportProgress(ctx, p, now) })
	interrupted := ctx.Err() != nil

	r.mu.Lock()
	defer r.mu.Unlock()
	e.attempting, e.interrupt, e.step = "", nil, ""
	if failed != nil && interrupted {
		r.queue.Add(p.Name)
		return false
	}
	e.attempted = key
	e.failure = failed
	if failed != nil {
		e.usable = false
		e.notBefore = r.config.Clock.Now().Add(e.retry.Step())
		r.markProcessed(p.Name)
		r.notifyWaiters()
		r.queue.AddAfter(p.Name, e.notBefore.Sub(r.config.Clock.Now()))
		return true
	}
	e.pack, e.usable, e.retry = got, true, newBackoff()
	if err := r.cache.keep(p.Name, &got.packageRecord); err != nil {
		r.config.Log.Warn("cache installed package failed", "provider", p.Name, "error", err)
	}
	r.rebuildTable()
	r.markProcessed(p.Name)
	if got.development != nil {
		r.queue.AddAfter(p.Name, developmentPoll)
	}
	return true
}

// forget removes a Provider that no longer exists.
func (r *Registry) forget(name string) error {
	r.mu.Lock()
	_, was := r.entries[name]
	delete(r.entries, name)
	r.markProcessed(name)
	if was {
		r.rebuildTable()
	}
	r.mu.Unlock()
	r.instances.retireAll(name)
	r.config.Metrics.forget(name)
	return r.cache.forget(name)
}

// collect removes unreferenced packages, once all Providers are known.
func (r *Registry) collect(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.synced:
	}
	var keep []packages.Digest
	for _, object := range r.objects.GetStore().List() {
		if p, ok := object.(*v1alpha1.Provider); ok {
			for _, d := range p.Spec.Digests {
				keep = append(keep, packages.Digest(d))
			}
		}
	}
	if _, err := r.store.Collect(keep, unusedPackageTTL); err != nil {
		r.config.Log.Warn("remove unused provider packages failed", "error", err)
	}
}
