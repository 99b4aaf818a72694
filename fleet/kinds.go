package fleet

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// registry holds the kinds of this moment, each with a cache of its objects. Kinds
// come and go: whoever listens to objects once hears of those of kinds to come.
//
// A kind is served when its cache is filled, and not before: what looks at a cache
// that is being filled sees objects missing that exist.
type registry struct {
	dyn  dynamic.Interface
	meta metadata.Interface

	mu sync.RWMutex
	// served and opening are at the same kind only while a cache is replaced.
	served, opening map[schema.GroupKind]*entry
	order           []schema.GroupKind // of the table: what others need first
	knowledge       interpret.Knowledge
	taught          string          // which lessons knowledge has
	lessons         map[string]bool // the kinds that they are about
	listeners       []listener
	told            []func(interpret.Kind)
}

// entry is one kind of the registry.
type entry struct {
	interpret.Kind
	// custom kinds are those that a CRD of the control plane defines.
	custom bool
	// taught kinds may need others; of kinds that nobody taught nothing is known.
	taught bool
	// status: objects of the kind have a status that can be written.
	status bool
	// scale of a custom kind, as its CRD says.
	scale *interpret.Scale

	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// listener hears of the objects of one kind, or with nil of all.
type listener struct {
	only *schema.GroupKind
	hear func(k interpret.Kind, was, is metav1.Object)
}

func newRegistry(dyn dynamic.Interface, meta metadata.Interface) *registry {
	r := &registry{dyn: dyn, meta: meta, knowledge: interpret.BuiltIn(),
		served: map[schema.GroupKind]*entry{}, opening: map[schema.GroupKind]*entry{}}
	for _, k := range r.knowledge.Kinds() {
		r.order = append(r.order, k.GroupKind())
	}
	return r
}

// open makes the cache of a kind, with everybody listening, for the caller to run
// until the context that it gives ends: when the kind is closed, or with ctx. The
// kind is served after settle.
func (r *registry) open(ctx context.Context, e entry) (context.Context, cache.SharedIndexInformer, error) {
	e.informer = objectInformer(r.dyn, r.meta, e.Kind)
	ctx, e.stop = context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.listeners {
		if err := e.attach(l); err != nil {
			e.stop()
			return nil, nil, err
		}
	}
	if before := r.opening[e.GroupKind()]; before != nil {
		before.stop()
	}
	r.opening[e.GroupKind()] = &e
	return ctx, e.informer, nil
}

func (e *entry) attach(l listener) error {
	if l.only != nil && *l.only != e.GroupKind() {
		return nil
	}
	k := e.Kind
	if err := On(e.informer, func(was, is metav1.Object) { l.hear(k, was, is) }); err != nil {
		return fmt.Errorf("fleet: listen to %s: %w", e.GroupKind(), err)
	}
	return nil
}

// settle makes a kind served whose cache is filled, in the place of the cache that
// it had, and tells everybody. It returns when they know.
func (r *registry) settle(informer cache.SharedIndexInformer) {
	r.mu.Lock()
	var e *entry
	for _, o := range r.opening {
		if o.informer == informer {
			e = o
		}
	}
	if e == nil {
		r.mu.Unlock()
		return // it went, or was replaced, while it was being filled
	}
	gk := e.GroupKind()
	before := r.served[gk]
	r.know(e)
	r.served[gk] = e
	told := slices.Clone(r.told)
	r.mu.Unlock()
	for _, tell := range told {
		tell(e.Kind)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.opening[gk]; o != nil && o.informer == informer {
		delete(r.opening, gk)
	}
	if before != nil {
		before.stop()
	}
}

// close forgets a kind and tells everybody.
func (r *registry) close(gk schema.GroupKind) {
	r.mu.Lock()
	gone := []*entry{r.served[gk], r.opening[gk]}
	delete(r.served, gk)
	delete(r.opening, gk)
	if gone[0] != nil && !gone[0].taught {
		r.knowledge = r.knowledge.Without(gk)
	}
	told := slices.Clone(r.told)
	r.mu.Unlock()
	for i, e := range gone {
		if e == nil {
			continue
		}
		e.stop()
		for _, tell := range told {
			if i == 0 {
				tell(e.Kind)
			}
		}
	}
}

// know adds a custom kind to what is known, so that it is asked for like the others,
// and lays over it what people taught. The caller holds mu.
func (r *registry) know(e *entry) {
	if e.custom {
		r.knowledge = r.knowledge.With(e.Kind)
	}
	e.Kind = r.understood(e.Kind)
}

func (r *registry) get(gk schema.GroupKind) (*entry, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e, ok := r.served[gk]
	return e, ok
}

// custom gives the custom kinds that are served or about to be.
func (r *registry) custom() map[schema.GroupKind]entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := map[schema.GroupKind]entry{}
	for _, entries := range []map[schema.GroupKind]*entry{r.served, r.opening} {
		for gk, e := range entries {
			if e.custom {
				out[gk] = *e
			}
		}
	}
	return out
}

// waitingFor names the kinds whose caches are not filled yet.
func (r *registry) waitingFor() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := make([]string, 0, len(r.opening))
	for gk := range r.opening {
		names = append(names, gk.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (r *registry) listen(l listener) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners = append(r.listeners, l)
	all := slices.Collect(maps.Values(r.served))
	for gk, e := range r.opening {
		// For a moment, one is in both.
		if s := r.served[gk]; s == nil || s.informer != e.informer {
			all = append(all, e)
		}
	}
	for _, e := range all {
		if err := e.attach(l); err != nil {
			return err
		}
	}
	return nil
}

// Knowledge gives what is known of kinds now: the table, what users taught, and
// the custom kinds that are served.
func (t *Term) Knowledge() interpret.Knowledge {
	t.kinds.mu.RLock()
	defer t.kinds.mu.RUnlock()
	return t.kinds.knowledge
}

// Kinds gives the kinds that are served now, those that others need first.
func (t *Term) Kinds() []interpret.Kind {
	r := t.kinds
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]interpret.Kind, 0, len(r.served))
	for _, gk := range r.order {
		if e, ok := r.served[gk]; ok {
			out = append(out, e.Kind)
		}
	}
	others := slices.SortedFunc(maps.Keys(r.served), func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) })
	for _, gk := range others {
		if !slices.Contains(r.order, gk) {
			out = append(out, r.served[gk].Kind)
		}
	}
	return out
}

// Served tells whether the control plane serves a kind to the fleet now, and what
// is known of it.
func (t *Term) Served(gk schema.GroupKind) (interpret.Kind, bool) {
	e, ok := t.kinds.get(gk)
	if !ok {
		return interpret.Kind{}, false
	}
	return e.Kind, true
}

// HasStatus tells whether objects of a kind have a status that can be written.
func (t *Term) HasStatus(gk schema.GroupKind) bool {
	e, ok := t.kinds.get(gk)
	return ok && e.status
}

// Complete tells whether all objects that may need others are in the caches. While
// they are not, what nobody seems to need may be needed.
func (t *Term) Complete() bool {
	t.kinds.mu.RLock()
	defer t.kinds.mu.RUnlock()
	for gk, e := range t.kinds.opening {
		if e.taught || t.kinds.lessons[gk.String()] {
			return false
		}
	}
	return true
}

// OnKind calls f with each kind that comes from now on, with all of its objects in
// the cache; when what is known of it changes; and when it has gone, which Served
// tells. For kinds that are there already see Kinds.
func (t *Term) OnKind(f func(interpret.Kind)) {
	t.kinds.mu.Lock()
	defer t.kinds.mu.Unlock()
	t.kinds.told = append(t.kinds.told, f)
}

// OnObject calls f for each object of a kind, and when one changes (was and is both
// set), comes (was nil) or goes (is nil), whenever the kind comes. Calls come one
// after another. Of objects the metadata is told. Most events need no more; for what
// does, there is Object.
func (t *Term) OnObject(gk schema.GroupKind, f func(was, is metav1.Object)) error {
	return t.kinds.listen(listener{only: &gk, hear: func(_ interpret.Kind, was, is metav1.Object) { f(was, is) }})
}

// OnObjects does the same for all kinds, now and to come. Calls about one kind come
// one after another.
func (t *Term) OnObjects(f func(k interpret.Kind, was, is metav1.Object)) error {
	return t.kinds.listen(listener{hear: f})
}

// Object gives an object of a served kind from the cache, for the caller to keep. Of
// an opaque kind it has only the metadata, and of a type no schema; Whole has the rest.
func (t *Term) Object(gk schema.GroupKind, key types.NamespacedName) (*unstructured.Unstructured, bool) {
	e, served := t.kinds.get(gk)
	if !served {
		return nil, false
	}
	item, found, err := e.informer.GetStore().GetByKey(CacheKey(key))
	if err != nil || !found {
		return nil, false
	}
	return Unpack(item)
}

// Head gives the metadata of an object that Object gives, for whoever needs no more of it.
// It must not be changed.
func (t *Term) Head(gk schema.GroupKind, key types.NamespacedName) (metav1.Object, bool) {
	e, served := t.kinds.get(gk)
	if !served {
		return nil, false
	}
	item, found, err := e.informer.GetStore().GetByKey(CacheKey(key))
	if err != nil || !found {
		return nil, false
	}
	head, ok := item.(metav1.Object)
	return head, ok
}

// Whole gives all of an object that Object gave: at least as new as that one. It is
// false if by now there is no such object or another of its name, which will be an
// event.
func (t *Term) Whole(ctx context.Context, k interpret.Kind, obj *unstructured.Unstructured) (*unstructured.Unstructured, bool, error) {
	if !partial(k) {
		return obj, true, nil
	}
	whole, err := t.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	case whole.GetUID() != obj.GetUID():
		return nil, false, nil
	}
	whole.SetManagedFields(nil)
	return whole, true, nil
}

// Objects goes through the objects of a served kind in a namespace, or with "" in
// all of them, as Object gives them: one after another, so that those of an opaque
// kind are never all in memory.
func (t *Term) Objects(gk schema.GroupKind, namespace string) iter.Seq[*unstructured.Unstructured] {
	return func(yield func(*unstructured.Unstructured) bool) {
		for _, item := range t.items(gk, namespace) {
			if obj, ok := Unpack(item); ok && !yield(obj) {
				return
			}
		}
	}
}

// Metadata goes through the same objects for whoever needs no more of them. They must not
// be changed.
func (t *Term) Metadata(gk schema.GroupKind, namespace string) iter.Seq[metav1.Object] {
	return func(yield func(metav1.Object) bool) {
		for _, item := range t.items(gk, namespace) {
			if obj, ok := item.(metav1.Object); ok && !yield(obj) {
				return
			}
		}
	}
}

func (t *Term) items(gk schema.GroupKind, namespace string) []any {
	e, served := t.kinds.get(gk)
	if !served {
		return nil
	}
	if namespace == "" {
		return e.informer.GetStore().List()
	}
	items, err := e.informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // the index exists: objectInformer made it
	}
	return items
}
