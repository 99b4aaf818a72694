package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// waitingInterval is the pause between two looks for objects of types that no cluster serves.
const waitingInterval = 15 * time.Second

// waitingTypes are the custom types that no cluster serves although objects of them exist. No cache has
// these objects: the fleet handles a kind only once a cluster accepts it.
type waitingTypes struct {
	mu     sync.Mutex
	names  map[string]bool // of CRDs
	notify []func(crd string)
}

// HasWaitingObjects reports whether objects of a CRD's type exist and no cluster serves the type.
func (c *Types) HasWaitingObjects(crd string) bool {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	return c.waiting.names[crd]
}

// OnWaitingObjects calls f, which must not block, when the result of HasWaitingObjects has changed for a
// CRD.
func (c *Types) OnWaitingObjects(f func(crd string)) {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	c.waiting.notify = append(c.waiting.notify, f)
}

// set replaces the names and reports the changes.
func (w *waitingTypes) set(names map[string]bool) {
	w.mu.Lock()
	var changed []string
	for name := range names {
		if !w.names[name] {
			changed = append(changed, name)
		}
	}
	for name := range w.names {
		if !names[name] {
			changed = append(changed, name)
		}
	}
	w.names = names
	notify := slices.Clone(w.notify)
	w.mu.Unlock()
	for _, name := range changed {
		for _, f := range notify {
			f(name)
		}
	}
}

// watchWaiting looks for objects of types that no cluster serves, until ctx ends.
func (c *customKinds) watchWaiting(ctx context.Context) {
	for {
		c.types.waiting.set(c.findWaiting(ctx))
		select {
		case <-ctx.Done():
			return
		case <-c.unserved:
		case <-c.clock.After(waitingInterval):
		}
	}
}

// findWaiting returns the CRDs whose types no cluster serves although objects of them exist. If the
// objects of a type cannot be listed, the last answer remains.
func (c *customKinds) findWaiting(ctx context.Context) map[string]bool {
	out, last := map[string]bool{}, c.types.waiting.current()
	for _, t := range c.types.crds.All() {
		if !t.established() || t.ours() || t.DeletionTimestamp != nil {
			continue
		}
		if _, served := c.kinds.entry(t.kind()); served {
			continue
		}
		v, ok := t.version(func(string) bool { return true })
		if !ok {
			continue
		}
		list, err := c.types.dynamic.Resource(schema.GroupVersionResource{Group: t.Spec.Group, Version: v.Name, Resource: t.Spec.Names.Plural}).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err != nil && last[t.Name], err == nil && len(list.Items) > 0:
			out[t.Name] = true
		}
	}
	return out
}

func (w *waitingTypes) current() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.names)
}
