package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Kinds is the registry of the kinds that are served now, each with a cache of its objects. Kinds
// are added and removed at any time. An object handler that is registered once is also called for
// kinds that are added later.
//
// A kind is served only when its cache is filled. During filling, existing objects would seem to be
// missing.
type Kinds struct {
	dyn  dynamic.Interface
	meta metadata.Interface
	// interpretations customize kinds.
	interpretations controllers.Cache[v1alpha1.ResourceInterpretation]

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

// entry is one kind.
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

func newKinds(dyn dynamic.Interface, meta metadata.Interface, interpretations controllers.Cache[v1alpha1.ResourceInterpretation], answers interpret.Answers) *Kinds {
	r := &Kinds{dyn: dyn, meta: meta, interpretations: interpretations, catalog: interpret.BuiltIn().AnsweredBy(answers),
		served: map[schema.GroupKind]*entry{}, opening: map[schema.GroupKind]*entry{}}
	for _, k := range r.catalog.Kinds() {
		r.order = append(r.order, k.GroupKind())
	}
	return r
}

// open creates the cache of a kind and attaches all object handlers. The caller runs the informer
// until the returned context ends: when the kind is closed, or with ctx. The kind is served after
// markServed.
func (r *Kinds) open(ctx context.Context, e entry) (context.Context, cache.SharedIndexInformer, error) {
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
	if err := controllers.OnChange(e.informer, func(was, is metav1.Object) { l.handle(k, was, is) }); err != nil {
		return fmt.Errorf("fleet: add an event handler for %s: %w", e.GroupKind(), err)
	}
	return nil
}

// markServed makes a kind served after its cache was filled, in place of its previous cache. It
// returns after all kind handlers were called.
func (r *Kinds) markServed(informer cache.SharedIndexInformer) {
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
func (r *Kinds) close(gk schema.GroupKind) {
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
func (r *Kinds) addToCatalog(e *entry) {
	if e.custom {
		r.catalog = r.catalog.With(e.KindInfo)
	}
	e.KindInfo = r.interpreted(e.KindInfo)
}

func (r *Kinds) entry(gk schema.GroupKind) (*entry, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e, ok := r.served[gk]
	return e, ok
}

// custom returns the custom kinds that are served or being opened.
func (r *Kinds) custom() map[schema.GroupKind]entry {
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
func (r *Kinds) waitingFor() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := make([]string, 0, len(r.opening))
	for gk := range r.opening {
		names = append(names, gk.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (r *Kinds) addHandler(l objectHandler) error {
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
func (r *Kinds) Catalog() interpret.Catalog {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.catalog
}

// All returns the kinds that are served now, dependencies first.
func (r *Kinds) All() []interpret.KindInfo {
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

// Get returns a kind if the control plane serves it to the fleet now.
func (r *Kinds) Get(gk schema.GroupKind) (interpret.KindInfo, bool) {
	e, ok := r.entry(gk)
	if !ok {
		return interpret.KindInfo{}, false
	}
	return e.KindInfo, true
}

// Of returns the interpretation of a binding's kind, in the version that is bound. For a custom
// kind that is no longer served, it is built from the binding alone, which is enough to find the
// object in a cluster.
func (r *Kinds) Of(b *v1alpha1.ResourceBinding) (interpret.KindInfo, bool) {
	return r.Catalog().ForBinding(b)
}

// HasStatus reports whether objects of a kind have a status subresource.
func (r *Kinds) HasStatus(gk schema.GroupKind) bool {
	e, ok := r.entry(gk)
	return ok && e.status
}

// DependenciesComplete reports whether the caches hold all objects that may need others. Until
// then, an object that seems unneeded may be needed.
func (r *Kinds) DependenciesComplete() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for gk, e := range r.opening {
		if e.inTable || r.customizedKinds[gk.String()] {
			return false
		}
	}
	return true
}

// OnChange calls f with each kind that is added from now on, after its cache is filled; when its
// interpretation changes; and when it is removed, after which Get no longer returns it. For the
// existing kinds see All.
func (r *Kinds) OnChange(f func(interpret.KindInfo)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kindHandlers = append(r.kindHandlers, f)
}

// servedKinds returns the built-in kinds that this control plane serves: it may run without the
// workload kinds. It asks only for versions that are listed: as long as not all providers are known, a
// server answers for any other that it does not know it yet, and the client would wait.
func servedKinds(ctx context.Context, api rest.Interface) ([]interpret.KindInfo, error) {
	var groups metav1.APIGroupList
	if err := api.Get().AbsPath("/apis").Do(ctx).Into(&groups); err != nil {
		return nil, fmt.Errorf("fleet: discover the API groups of the control plane: %w", err)
	}
	served := map[schema.GroupVersion]map[string]bool{{Version: "v1"}: nil}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			served[schema.GroupVersion{Group: g.Name, Version: v.Version}] = nil
		}
	}
	var out []interpret.KindInfo
	for _, k := range interpret.Kinds() {
		resources, ok := served[k.GroupVersion()]
		if ok && resources == nil {
			var err error
			if resources, err = servedResources(ctx, api, k.GroupVersion()); err != nil {
				return nil, fmt.Errorf("fleet: discover the resources of %s in the control plane: %w", k.GroupVersion(), err)
			}
			served[k.GroupVersion()] = resources
		}
		if resources[k.Resource] {
			out = append(out, k)
		}
	}
	return out, nil
}

func servedResources(ctx context.Context, api rest.Interface, gv schema.GroupVersion) (map[string]bool, error) {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	var list metav1.APIResourceList
	if err := api.Get().AbsPath(path).Do(ctx).Into(&list); err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	resources := map[string]bool{}
	for _, r := range list.APIResources {
		resources[r.Name] = true
	}
	return resources, nil
}
