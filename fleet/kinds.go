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

// registry holds the kinds that are served now, each with a cache of its objects. Kinds are added
// and removed at any time. An object handler that is registered once is also called for kinds that
// are added later.
//
// A kind is served only when its cache is filled. During filling, existing objects would seem to be
// missing.
type registry struct {
	dyn  dynamic.Interface
	meta metadata.Interface

	mu sync.RWMutex
	// A kind is in both maps only while its cache is being replaced.
	served, opening map[schema.GroupKind]*entry
	order           []schema.GroupKind // built-in kinds, dependencies first
	catalog         interpret.Catalog
	customizations  string          // the version of the customizations in the catalog
	customizedKinds map[string]bool // the customized kinds
	objectHandlers  []objectHandler
	kindHandlers    []func(interpret.KindInfo)
}

// entry is one kind of the registry.
type entry struct {
	interpret.KindInfo
	// custom kinds are those that a CRD of the control plane defines.
	custom bool
	// inTable: the kind is in the built-in table, so its objects may need others. For other custom
	// kinds, dependencies are unknown.
	inTable bool
	// status: objects of the kind have a status subresource.
	status bool
	// scale is a custom kind's scale subresource, as its CRD declares it.
	scale *interpret.Scale

	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// objectHandler handles the events of one kind's objects, or of all kinds if only is nil.
type objectHandler struct {
	only   *schema.GroupKind
	handle func(k interpret.KindInfo, was, is metav1.Object)
}

func newRegistry(dyn dynamic.Interface, meta metadata.Interface) *registry {
	r := &registry{dyn: dyn, meta: meta, catalog: interpret.BuiltIn(),
		served: map[schema.GroupKind]*entry{}, opening: map[schema.GroupKind]*entry{}}
	for _, k := range r.catalog.Kinds() {
		r.order = append(r.order, k.GroupKind())
	}
	return r
}

// open creates the cache of a kind and attaches all object handlers. The caller runs the informer
// until the returned context ends: when the kind is closed, or with ctx. The kind is served after
// markServed.
func (r *registry) open(ctx context.Context, e entry) (context.Context, cache.SharedIndexInformer, error) {
	e.informer = objectInformer(r.dyn, r.meta, e.KindInfo)
	ctx, e.stop = context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.objectHandlers {
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

func (e *entry) attach(l objectHandler) error {
	if l.only != nil && *l.only != e.GroupKind() {
		return nil
	}
	k := e.KindInfo
	if err := AddHandler(e.informer, func(was, is metav1.Object) { l.handle(k, was, is) }); err != nil {
		return fmt.Errorf("fleet: add an event handler for %s: %w", e.GroupKind(), err)
	}
	return nil
}

// markServed makes a kind served after its cache was filled, in place of its previous cache. It
// returns after all kind handlers were called.
func (r *registry) markServed(informer cache.SharedIndexInformer) {
	r.mu.Lock()
	var e *entry
	for _, o := range r.opening {
		if o.informer == informer {
			e = o
		}
	}
	if e == nil {
		r.mu.Unlock()
		return // it was closed or replaced while it was being filled
	}
	gk := e.GroupKind()
	before := r.served[gk]
	r.addToCatalog(e)
	r.served[gk] = e
	told := slices.Clone(r.kindHandlers)
	r.mu.Unlock()
	for _, tell := range told {
		tell(e.KindInfo)
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

// close removes a kind and calls all kind handlers.
func (r *registry) close(gk schema.GroupKind) {
	r.mu.Lock()
	gone := []*entry{r.served[gk], r.opening[gk]}
	delete(r.served, gk)
	delete(r.opening, gk)
	if gone[0] != nil && !gone[0].inTable {
		r.catalog = r.catalog.Without(gk)
	}
	told := slices.Clone(r.kindHandlers)
	r.mu.Unlock()
	for i, e := range gone {
		if e == nil {
			continue
		}
		e.stop()
		for _, tell := range told {
			if i == 0 {
				tell(e.KindInfo)
			}
		}
	}
}

// addToCatalog adds a custom kind to the catalog, and applies its customizations. The caller holds
// mu.
func (r *registry) addToCatalog(e *entry) {
	if e.custom {
		r.catalog = r.catalog.With(e.KindInfo)
	}
	e.KindInfo = r.interpreted(e.KindInfo)
}

func (r *registry) get(gk schema.GroupKind) (*entry, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e, ok := r.served[gk]
	return e, ok
}

// custom returns the custom kinds that are served or being opened.
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

// waitingFor returns the names of the kinds whose caches are not filled yet.
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

func (r *registry) addHandler(l objectHandler) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objectHandlers = append(r.objectHandlers, l)
	all := slices.Collect(maps.Values(r.served))
	for gk, e := range r.opening {
		// While a cache is replaced, a kind is in both maps.
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

// Catalog returns the interpretation of all kinds now: the built-in table, the customizations, and
// the custom kinds that are served.
func (s *Session) Catalog() interpret.Catalog {
	s.kinds.mu.RLock()
	defer s.kinds.mu.RUnlock()
	return s.kinds.catalog
}

// Kinds returns the kinds that are served now, dependencies first.
func (s *Session) Kinds() []interpret.KindInfo {
	r := s.kinds
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]interpret.KindInfo, 0, len(r.served))
	for _, gk := range r.order {
		if e, ok := r.served[gk]; ok {
			out = append(out, e.KindInfo)
		}
	}
	others := slices.SortedFunc(maps.Keys(r.served), func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) })
	for _, gk := range others {
		if !slices.Contains(r.order, gk) {
			out = append(out, r.served[gk].KindInfo)
		}
	}
	return out
}

// ServedKind returns a kind if the control plane serves it to the fleet now.
func (s *Session) ServedKind(gk schema.GroupKind) (interpret.KindInfo, bool) {
	e, ok := s.kinds.get(gk)
	if !ok {
		return interpret.KindInfo{}, false
	}
	return e.KindInfo, true
}

// HasStatus reports whether objects of a kind have a status subresource.
func (s *Session) HasStatus(gk schema.GroupKind) bool {
	e, ok := s.kinds.get(gk)
	return ok && e.status
}

// DependenciesComplete reports whether the caches hold all objects that may need others. Until
// then, an object that seems unneeded may be needed.
func (s *Session) DependenciesComplete() bool {
	s.kinds.mu.RLock()
	defer s.kinds.mu.RUnlock()
	for gk, e := range s.kinds.opening {
		if e.inTable || s.kinds.customizedKinds[gk.String()] {
			return false
		}
	}
	return true
}

// OnKind calls f with each kind that is added from now on, after its cache is filled; when its
// interpretation changes; and when it is removed, after which ServedKind no longer returns it. For
// the existing kinds see Kinds.
func (s *Session) OnKind(f func(interpret.KindInfo)) {
	s.kinds.mu.Lock()
	defer s.kinds.mu.Unlock()
	s.kinds.kindHandlers = append(s.kinds.kindHandlers, f)
}

// OnObject calls f for each object of a kind: when it is added (was is nil), changed (both are set)
// or deleted (is is nil), even if the kind itself is added later. Calls are sequential. f gets only
// the metadata, which is enough for most events. Object returns the rest.
func (s *Session) OnObject(gk schema.GroupKind, f func(was, is metav1.Object)) error {
	return s.kinds.addHandler(objectHandler{only: &gk, handle: func(_ interpret.KindInfo, was, is metav1.Object) { f(was, is) }})
}

// OnObjects does the same for all kinds, present and future. Calls for one kind are sequential.
func (s *Session) OnObjects(f func(k interpret.KindInfo, was, is metav1.Object)) error {
	return s.kinds.addHandler(objectHandler{handle: f})
}

// Object returns an object of a served kind from the cache. The caller owns it. For an opaque kind
// it has only the metadata, and for a CRD no schema; FullObject returns the rest.
func (s *Session) Object(gk schema.GroupKind, key types.NamespacedName) (*unstructured.Unstructured, bool) {
	e, served := s.kinds.get(gk)
	if !served {
		return nil, false
	}
	item, found, err := e.informer.GetStore().GetByKey(CacheKey(key))
	if err != nil || !found {
		return nil, false
	}
	return Unpack(item)
}

// ObjectMetadata returns only the metadata of an object, without decoding the rest. It must not be
// changed.
func (s *Session) ObjectMetadata(gk schema.GroupKind, key types.NamespacedName) (metav1.Object, bool) {
	e, served := s.kinds.get(gk)
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

// FullObject returns the complete object for one that Object returned, in the same or a newer
// version. It returns false if the object is gone or was replaced; an event will follow.
func (s *Session) FullObject(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured) (*unstructured.Unstructured, bool, error) {
	if !partial(k) {
		return obj, true, nil
	}
	whole, err := s.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
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

// Objects iterates over the objects of a served kind in a namespace, or in all namespaces with "".
// It decodes one at a time, so that memory never holds all of them.
func (s *Session) Objects(gk schema.GroupKind, namespace string) iter.Seq[*unstructured.Unstructured] {
	return func(yield func(*unstructured.Unstructured) bool) {
		for _, item := range s.items(gk, namespace) {
			if obj, ok := Unpack(item); ok && !yield(obj) {
				return
			}
		}
	}
}

// Metadata iterates over only the metadata of the same objects. It must not be changed.
func (s *Session) Metadata(gk schema.GroupKind, namespace string) iter.Seq[metav1.Object] {
	return func(yield func(metav1.Object) bool) {
		for _, item := range s.items(gk, namespace) {
			if obj, ok := item.(metav1.Object); ok && !yield(obj) {
				return
			}
		}
	}
}

func (s *Session) items(gk schema.GroupKind, namespace string) []any {
	e, served := s.kinds.get(gk)
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
