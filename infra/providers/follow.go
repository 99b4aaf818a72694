package providers

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/install"
	"github.com/atoll-dev/atoll/infra/schema"
)

const (
	// atOnce is how many Providers are installed at a time.
	atOnce = 4
	// firstRetry doubles with each failure in a row, up to lastRetry.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	// developmentPoll is how often a program in development is looked at.
	developmentPoll = 3 * time.Second
	// unusedPackage is how long a package stays that no Provider asks for.
	unusedPackage = 24 * time.Hour
)

// entry is a Provider as this server has it. All of it is under Registry.mu, and what it points to is not
// changed.
type entry struct {
	object *v1alpha1.Provider
	// pack is the package of which the types are served; nil if none ever was.
	pack *pack
	// usable says that pack is what the spec asks for, and lies in the store.
	usable bool
	// tried is what the last try to install was of, and failure what came of it.
	tried     string
	failure   *failure
	failures  int // in a row
	notBefore time.Time
	// trying is what is being tried; interrupt ends that, and step is how far it is.
	trying    string
	interrupt context.CancelFunc
	step      string
	stepTold  time.Time
}

func newInformer(client dynamic.Interface) cache.SharedIndexInformer {
	i := dynamicinformer.NewFilteredDynamicInformer(client, v1alpha1.ProviderResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	// It fails only on a running informer, which this one is not.
	if err := i.SetTransform(into[v1alpha1.Provider]); err != nil {
		panic(err)
	}
	return i
}

// into makes an informer hold T. What cannot be read as one is left as it is, and found by nobody.
func into[T any](object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	u.SetManagedFields(nil)
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return object, nil
	}
	return out, nil
}

// Run follows Providers until ctx ends. Their type has to be served.
func (r *Registry) Run(ctx context.Context) error {
	handler, err := r.objects.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { r.seen(nil, o) }, UpdateFunc: r.seen, DeleteFunc: func(o any) { r.seen(o, nil) },
	})
	if err != nil {
		return fmt.Errorf("follow Providers: %w", err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer r.queue.ShutDown()
	work.Go(func() { r.objects.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), r.objects.HasSynced, handler.HasSynced) {
		return nil
	}
	r.recall()
	for range atOnce {
		work.Go(func() {
			for r.next(ctx) {
			}
		})
	}
	work.Go(func() { r.opened.sweepUntil(ctx) })
	work.Go(func() { r.collect(ctx) })
	<-ctx.Done()
	return nil
}

// seen has a Provider looked at, unless only its status changed: that is what looking
// does, and other servers would look in turn.
func (r *Registry) seen(before, after any) {
	was, _ := tombless(before).(*v1alpha1.Provider)
	is, _ := tombless(after).(*v1alpha1.Provider)
	switch {
	case is == nil && was == nil:
		return
	case is == nil:
		is = was
	case was != nil && was.UID == is.UID && was.Generation == is.Generation && was.DeletionTimestamp.Equal(is.DeletionTimestamp):
		return
	}
	r.mu.Lock()
	if e := r.entries[is.Name]; e != nil && e.interrupt != nil && (after == nil || e.trying != wanted(&is.Spec)) {
		e.interrupt()
	}
	r.mu.Unlock()
	r.queue.Add(is.Name)
}

func tombless(object any) any {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return object
}

// provider is one as the API has it, nil if it has none.
func (r *Registry) provider(name string) *v1alpha1.Provider {
	object, _, _ := r.objects.GetStore().GetByKey(name) // a cache has no errors
	p, _ := object.(*v1alpha1.Provider)
	return p
}

// recall serves what was served before the server was started, without starting or verifying anything: types stay
// served, though their package may be gone.
func (r *Registry) recall() {
	present := map[string]bool{}
	waiting := map[string]bool{}
	entries := map[string]*entry{}
	for _, object := range r.objects.GetStore().List() {
		p, ok := object.(*v1alpha1.Provider)
		if !ok {
			continue
		}
		present[p.Name] = true
		e := &entry{object: p}
		entries[p.Name] = e
		if e.pack = r.recalled(p); e.pack == nil {
			waiting[p.Name] = true
		}
	}
	if err := r.memory.sweep(present); err != nil {
		r.config.Log.Warn("what is known of former Providers cannot be removed", "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries, r.waiting = entries, waiting
	r.decide()
	r.looked("")
}

func (r *Registry) recalled(p *v1alpha1.Provider) *pack {
	last, err := r.memory.last(p.Name)
	if err != nil || last.Provider != p.UID {
		return nil
	}
	catalog, err := r.memory.catalog(last.Content)
	if err != nil {
		return nil
	}
	return &pack{known: *last, catalog: catalog, names: schema.Names(catalog.Resources(), catalog.DataSources())}
}

// looked notes that a Provider has been looked at. The lock is held.
func (r *Registry) looked(name string) {
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

// decide makes the table anew. The lock is held.
func (r *Registry) decide() {
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
			catalog: e.pack.catalog, all: e.pack.names, revision: e.pack.revision(),
		})
	}
	r.table = newTable(all)
	close(r.changed)
	r.changed = make(chan struct{})
	// What one serves decides what others can.
	for name := range r.entries {
		r.queue.Add(name)
	}
	r.move()
}

// move tells whoever waits for an entry. The lock is held.
func (r *Registry) move() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// next looks at one Provider, until there are no more.
func (r *Registry) next(ctx context.Context) bool {
	name, done := r.queue.Get()
	if done || ctx.Err() != nil {
		return false
	}
	defer r.queue.Done(name)
	if err := r.follow(ctx, name); err != nil && ctx.Err() == nil {
		r.config.Log.Error("a Provider cannot be followed; trying again", "provider", name, "error", err)
		r.queue.AddAfter(name, firstRetry)
	}
	return true
}

// follow brings a Provider to where its spec says, and writes its status.
func (r *Registry) follow(ctx context.Context, name string) error {
	p := r.provider(name)
	if p == nil {
		return r.forget(name)
	}
	if err := r.hold(ctx, p); err != nil {
		return err
	}
	try, again := r.look(p)
	if try && !r.try(ctx, p) {
		return nil // it was interrupted, and comes again
	}
	if !try && again > 0 {
		r.queue.AddAfter(name, again)
	}
	return r.report(ctx, p)
}

// look takes in a Provider as it is, and tells whether anything is to be installed, or when to come again.
func (r *Registry) look(p *v1alpha1.Provider) (try bool, again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[p.Name]
	if e == nil || e.object.UID != p.UID {
		e = &entry{object: p, pack: r.recalled(p)}
		r.entries[p.Name] = e
		r.decide()
	}
	before := e.object
	e.object = p
	if before.Generation != p.Generation && (e.failure != nil || e.tried != wanted(&p.Spec)) {
		e.tried, e.usable, e.failure, e.failures = "", false, nil, 0
	}
	if before.Generation != p.Generation || (before.DeletionTimestamp == nil) != (p.DeletionTimestamp == nil) {
		r.decide()
	}
	now := r.config.Clock.Now()
	switch {
	case e.tried != wanted(&p.Spec):
		return true, 0
	case e.usable && e.pack.development != nil:
		return e.pack.rebuilt(), developmentPoll
	case e.usable:
		return false, 0
	case e.failure != nil && e.failure.lasting:
		return false, 0
	case e.failure != nil && now.Before(e.notBefore):
		return false, e.notBefore.Sub(now)
	}
	return true, 0
}

// try installs a Provider's package once. It tells whether that came to an end.
func (r *Registry) try(ctx context.Context, p *v1alpha1.Provider) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := wanted(&p.Spec)
	r.mu.Lock()
	e := r.entries[p.Name]
	e.trying, e.interrupt, e.step = key, cancel, ""
	r.mu.Unlock()

	got, failed := r.install(ctx, p, func(now install.StepProgress) { r.tell(ctx, p, now) })
	interrupted := ctx.Err() != nil

	r.mu.Lock()
	defer r.mu.Unlock()
	e.trying, e.interrupt, e.step = "", nil, ""
	if failed != nil && interrupted {
		r.queue.Add(p.Name)
		return false
	}
	e.tried = key
	e.failure = failed
	if failed != nil {
		e.usable = false
		e.notBefore = r.config.Clock.Now().Add(min(lastRetry, firstRetry<<min(e.failures, 10)))
		e.failures++
		r.looked(p.Name)
		r.move()
		r.queue.AddAfter(p.Name, e.notBefore.Sub(r.config.Clock.Now()))
		return true
	}
	e.pack, e.usable, e.failures = got, true, 0
	if err := r.memory.keep(p.Name, &got.known); err != nil {
		r.config.Log.Warn("what a Provider has cannot be kept", "provider", p.Name, "error", err)
	}
	r.decide()
	r.looked(p.Name)
	if got.development != nil {
		r.queue.AddAfter(p.Name, developmentPoll)
	}
	return true
}

// forget takes in that there is no such Provider any more.
func (r *Registry) forget(name string) error {
	r.mu.Lock()
	_, was := r.entries[name]
	delete(r.entries, name)
	r.looked(name)
	if was {
		r.decide()
	}
	r.mu.Unlock()
	r.opened.retireAll(name)
	return r.memory.forget(name)
}

// collect removes packages that nobody asks for, once it is known what is asked for.
func (r *Registry) collect(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.synced:
	}
	var keep []install.Digest
	for _, object := range r.objects.GetStore().List() {
		if p, ok := object.(*v1alpha1.Provider); ok {
			for _, d := range p.Spec.Digests {
				keep = append(keep, install.Digest(d))
			}
		}
	}
	if _, err := r.store.Collect(keep, unusedPackage); err != nil {
		r.config.Log.Warn("packages of providers that nobody asks for cannot be removed", "error", err)
	}
}
