package scheduler

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// assumed has the bindings as this scheduler decided them, until the watch shows them. Decisions read the bindings of
// other objects here: in the cache, two objects that avoid each other and are applied at the same moment would both seem
// not to be placed. A new leader has none.
type assumed struct {
	cached cachedBindings
	mu     sync.RWMutex
	by     map[types.NamespacedName]*assumption
	// preemptors are those for which others make room: each decision looks for them.
	preemptors map[types.NamespacedName]bool
}

// cachedBindings are the bindings as the watch shows them.
type cachedBindings interface {
	Get(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool)
	In(namespace string) []*v1alpha1.ResourceBinding
	All() []*v1alpha1.ResourceBinding
}

func newAssumed(cached cachedBindings) *assumed {
	return &assumed{cached: cached, by: map[types.NamespacedName]*assumption{}, preemptors: map[types.NamespacedName]bool{}}
}

// set replaces an assumption, and end removes one. The caller holds mu.
func (a *assumed) set(key types.NamespacedName, as *assumption) {
	a.end(key)
	a.by[key] = as
	if as.is.Spec.Preemption != nil {
		a.preemptors[key] = true
	}
}

func (a *assumed) end(key types.NamespacedName) {
	delete(a.by, key)
	delete(a.preemptors, key)
}

// assumption is one binding that the cache does not have yet.
type assumption struct {
	// base is the binding that was decided about; nil if the object had no binding.
	base *v1alpha1.ResourceBinding
	// is has the decision. When it is written, it is the answer of the API.
	is      *v1alpha1.ResourceBinding
	written bool
	// uncertain: the decision may be stored.
	uncertain bool
	since     time.Time
	// awaited: its object is to be reconciled when it ends.
	awaited bool
}

// isShownBy reports whether a binding, as the watch shows it, is at least as new as the assumption. b is nil if the watch shows
// none.
func (a *assumption) isShownBy(b *v1alpha1.ResourceBinding) bool {
	switch {
	case a.written && b == nil:
		return false // it is not there yet: the event of its deletion ends the assumption
	case a.written:
		// Both are revisions of one key. If they cannot be compared, the watch is right.
		order, err := resourceversion.CompareResourceVersion(b.ResourceVersion, a.is.ResourceVersion)
		return err != nil || order >= 0
	case a.base == nil || b == nil:
		return a.base != b
	}
	// Reports of clusters change the binding meanwhile. Another generation is this decision, or makes its write fail.
	return b.UID != a.base.UID || b.Generation > a.base.Generation
}

// decide records a decision, before it is written. base is the binding that it is about, or nil.
func (a *assumed) decide(key types.NamespacedName, base, is *v1alpha1.ResourceBinding, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set(key, &assumption{base: base, is: is, since: now})
}

// wrote records the answer of the API to a write, or to a read after it. It has no effect if the watch has shown the binding already.
func (a *assumed) wrote(key types.NamespacedName, is *v1alpha1.ResourceBinding, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.by[key]
	if before == nil {
		return
	}
	next := &assumption{is: is, written: true, since: now, awaited: before.awaited}
	a.set(key, next)
	if b, exists := a.cached.Get(key); exists && !next.awaited && next.isShownBy(b) {
		a.end(key) // perhaps the write changed nothing, and no event follows
	}
}

// doubt records that a decision may be stored. It counts until the next try.
func (a *assumed) doubt(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if as := a.by[key]; as != nil {
		as.uncertain = true
	}
}

// settle ends the assumption of a decision that was not written, and returns the decision, or nil. If its object is tried again,
// an uncertain one stays until then.
func (a *assumed) settle(key types.NamespacedName, again bool) *v1alpha1.ResourceBinding {
	a.mu.Lock()
	defer a.mu.Unlock()
	as := a.by[key]
	if as == nil || as.written || as.uncertain && again {
		return nil
	}
	a.end(key)
	return as.is
}

// forget ends the assumption of a binding that is gone.
func (a *assumed) forget(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end(key)
}

// observe ends an assumption after an event, if the cache has its binding, or that is gone. It reports whether the end was awaited.
// The event itself may be older than the cache, and of a predecessor.
func (a *assumed) observe(was, is *v1alpha1.ResourceBinding) (awaited bool) {
	key := cmp.Or(is, was).Key()
	a.mu.Lock()
	defer a.mu.Unlock()
	as := a.by[key]
	if as == nil {
		return false
	}
	gone := is == nil && as.written && as.is.UID == was.UID
	if b, _ := a.cached.Get(key); !gone && !as.isShownBy(b) {
		return false
	}
	a.end(key)
	return as.awaited
}

// await returns the binding that was written and that the cache does not have yet, and since when; nil if it has it. Otherwise
// observe reports when it does.
func (a *assumed) await(key types.NamespacedName) (*v1alpha1.ResourceBinding, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	as := a.by[key]
	if as == nil || !as.written {
		return nil, time.Time{}
	}
	if b, _ := a.cached.Get(key); as.isShownBy(b) {
		return nil, time.Time{}
	}
	as.awaited = true
	return as.is, as.since
}

// unseenSince returns the bindings that were written before a time and whose event has not arrived.
func (a *assumed) unseenSince(before time.Time) (out []*v1alpha1.ResourceBinding) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, as := range a.by {
		if as.written && as.since.Before(before) {
			out = append(out, as.is)
		}
	}
	return out
}

// Get returns one binding, by the latest decision. The cache is read under the lock, here and below: an assumption must not
// end between the two reads, or neither would have the decision.
func (a *assumed) Get(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	b, _ := a.cached.Get(key)
	if as := a.by[key]; as != nil && !as.isShownBy(b) {
		b = as.is
	}
	return b, b != nil
}

// In returns the bindings of a namespace's objects, by the latest decisions.
func (a *assumed) In(namespace string) []*v1alpha1.ResourceBinding {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.over(a.cached.In(namespace), func(key types.NamespacedName) bool { return namespace != "" && key.Namespace == namespace })
}

// All returns all bindings, by the latest decisions.
func (a *assumed) All() []*v1alpha1.ResourceBinding {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.over(a.cached.All(), func(types.NamespacedName) bool { return true })
}

// over replaces cached bindings by newer ones, and adds those that the cache lacks. cached are all bindings whose keys it has.
func (a *assumed) over(cached []*v1alpha1.ResourceBinding, has func(types.NamespacedName) bool) []*v1alpha1.ResourceBinding {
	if len(a.by) == 0 {
		return cached
	}
	out, found := make([]*v1alpha1.ResourceBinding, 0, len(cached)+len(a.by)), map[types.NamespacedName]bool{}
	for _, b := range cached {
		if as := a.by[b.Key()]; as != nil {
			found[b.Key()] = true
			if !as.isShownBy(b) {
				b = as.is
			}
		}
		out = append(out, b)
	}
	for key, as := range a.by {
		if has(key) && !found[key] && !as.isShownBy(nil) {
			out = append(out, as.is)
		}
	}
	return out
}

// latestOf returns those of some cached bindings that have the latest decision.
func (a *assumed) latestOf(cached []*v1alpha1.ResourceBinding) []*v1alpha1.ResourceBinding {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if len(a.by) == 0 {
		return cached
	}
	return slices.DeleteFunc(cached, func(b *v1alpha1.ResourceBinding) bool {
		as := a.by[b.Key()]
		return as != nil && !as.isShownBy(b)
	})
}

// preempting returns the bindings with decisions that make an object leave, as far as the cache does not have them yet.
func (a *assumed) preempting(victim object) (out []*v1alpha1.ResourceBinding) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for key := range a.preemptors {
		as := a.by[key]
		if !isVictim(victim, as.is.Spec.Preemption) {
			continue
		}
		if b, _ := a.cached.Get(key); !as.isShownBy(b) {
			out = append(out, as.is)
		}
	}
	return out
}
