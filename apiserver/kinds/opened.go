package kinds

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

// openKinds are the kinds that are or were recently in use.
type openKinds struct {
	mu    sync.Mutex
	kinds map[schema.GroupVersionResource]*openKind
}

// openKind is a kind that is or is being opened.
type openKind struct {
	resource schema.GroupVersionResource
	names    Names
	revision string
	// life ends when the kind is retired.
	life context.Context
	end  context.CancelFunc

	once sync.Once
	// openKinds' lock guards the following fields.
	kind    *servedKind
	err     error
	users   int
	used    time.Time
	retired bool
}

// acquire opens a kind if necessary, and keeps it open until the caller releases it.
func (o *openKinds) acquire(
	r schema.GroupVersionResource, names Names, revision string, clock clock.PassiveClock,
	build func(schema.GroupVersionResource, Names) (*servedKind, error),
) (*servedKind, context.Context, func(), error) {
	o.mu.Lock()
	k := o.kinds[r]
	if k != nil && k.revision != revision {
		// A request that began before a change may get here after it, so it is unknown
		// which revision is newer. If this one is older, the next request replaces it
		// again.
		o.remove(k)
		k = nil
	}
	if k == nil {
		k = &openKind{resource: r, names: names, revision: revision}
		k.life, k.end = context.WithCancel(context.Background())
		o.kinds[r] = k
	}
	k.users++
	o.mu.Unlock()

	k.once.Do(func() {
		kind, err := build(r, names)
		o.mu.Lock()
		defer o.mu.Unlock()
		k.kind, k.err = kind, err
		if err != nil {
			o.remove(k) // the next request tries again
		}
	})
	o.mu.Lock()
	kind, err := k.kind, k.err
	o.mu.Unlock()
	release := func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		k.users--
		k.used = clock.Now()
		k.closeIfUnused()
	}
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return kind, k.life, release, nil
}

// retire drops kinds, ends their watches, and closes them when no request uses them any
// more.
func (o *openKinds) retire(which func(*openKind) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.kinds {
		if which(k) {
			o.remove(k)
		}
	}
}

// retireIdle drops the kinds that no request has used since then.
func (o *openKinds) retireIdle(since time.Time) {
	o.retire(func(k *openKind) bool { return k.users == 0 && k.used.Before(since) })
}

// remove must be called with the lock held.
func (o *openKinds) remove(k *openKind) {
	if o.kinds[k.resource] == k {
		delete(o.kinds, k.resource)
	}
	k.retired = true
	k.end()
	k.closeIfUnused()
}

// closeIfUnused must be called with openKinds' lock held.
func (k *openKind) closeIfUnused() {
	if k.retired && k.users == 0 && k.kind != nil {
		k.kind.destroy()
		k.kind = nil
	}
}
