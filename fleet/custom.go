package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// customKindsTimeout is how long a new session waits for the caches of custom kinds. A type
	// whose objects cannot be read, because its conversion fails for example, must not stop the
	// controllers from handling the other kinds.
	customKindsTimeout = 10 * time.Second
	// typesDebounce is the pause between two evaluations of the types.
	typesDebounce = 100 * time.Millisecond
)

// customKinds keeps the custom kinds of a session as its types, bindings and customizations require.
type customKinds struct {
	kinds    *Kinds
	types    *Types
	bindings *Bindings
	clock    clock.WithTicker
	log      *slog.Logger
	running  *sync.WaitGroup
	// changed receives an element when the kinds, or their interpretation, may have changed.
	changed chan struct{}
}

func newCustomKinds(s *Session) *customKinds {
	return &customKinds{kinds: s.Kinds, types: s.Types, bindings: s.Bindings, clock: s.Clock, log: s.Log, running: &s.running, changed: make(chan struct{}, 1)}
}

// listen adds the event handlers that cause another evaluation.
func (c *customKinds) listen() error {
	return errors.Join(
		c.types.crds.OnChange(func(was, is *customType) {
			c.types.recordDeletion(was, is)
			c.wake()
		}),
		controllers.OnChange(c.types.negotiated.Informer, func(_, _ metav1.Object) { c.wake() }),
		controllers.OnChange(c.kinds.interpretations.Informer, func(_, _ metav1.Object) { c.wake() }),
		c.bindings.OnChange(func(was, is *v1alpha1.ResourceBinding) {
			if is != nil {
				return
			}
			// Clusters may no longer accept the kind; without a last binding it is no longer served.
			if e, ok := c.kinds.entry(was.Spec.Resource.GroupVersionKind().GroupKind()); ok && e.custom {
				c.wake()
			}
		}),
	)
}

// wake never blocks.
func (c *customKinds) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// start starts the custom kinds that exist now, and follows changes until ctx ends.
func (c *customKinds) start(ctx context.Context) error {
	c.sync(ctx)
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := c.clock.NewTimer(customKindsTimeout)
	defer timer.Stop()
	c.running.Go(func() {
		select {
		case <-timer.C():
			cancel()
		case <-wait.Done():
		}
	})
	if !cache.WaitForCacheSync(wait.Done(), func() bool { return c.kinds.waitingFor() == "" }) && ctx.Err() == nil {
		c.log.Warn("cannot read objects of some kinds; objects that they may need are not removed meanwhile", "kinds", c.kinds.waitingFor())
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fleet: fill the caches: %w", context.Cause(ctx))
	}
	c.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.changed:
				c.sync(ctx)
			}
			select {
			case <-ctx.Done():
				return
			case <-c.clock.After(typesDebounce):
			}
		}
	})
	return nil
}

// sync loads the customizations, starts the custom kinds that should be served, and stops
// those that should not.
func (c *customKinds) sync(ctx context.Context) {
	c.kinds.loadCustomizations()
	wanted, have := c.wanted(), c.kinds.custom()
	for gk, e := range wanted {
		if was, ok := have[gk]; !ok || !sameEntry(was, e) {
			c.startKind(ctx, e)
		}
	}
	for gk := range have {
		if _, ok := wanted[gk]; !ok {
			c.log.Info("kind is no longer served to the fleet", "kind", gk.String())
			c.kinds.close(gk)
		}
	}
}

func (c *customKinds) startKind(ctx context.Context, e entry) {
	ctx, informer, err := c.kinds.open(ctx, e)
	if err != nil {
		c.log.Error("watching a kind failed", "kind", e.GroupKind().String(), "error", err)
		return
	}
	c.log.Info("kind is served to the fleet", "kind", e.GroupKind().String(), "version", e.Version)
	c.running.Go(func() { informer.RunWithContext(ctx) })
	c.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			c.kinds.markServed(informer)
		}
	})
}

func sameEntry(a, b entry) bool {
	return a.GroupVersionKind == b.GroupVersionKind && a.Resource == b.Resource && a.ClusterScoped == b.ClusterScoped &&
		a.status == b.status && a.inTable == b.inTable && reflect.DeepEqual(a.scale, b.scale)
}

// wanted returns the custom kinds that should be served: those that clusters accept as this
// control plane defines them, and those that have bindings. The latter are served until the last
// binding is gone.
func (c *customKinds) wanted() map[schema.GroupKind]entry {
	out := map[schema.GroupKind]entry{}
	for _, t := range c.types.crds.All() {
		if !t.established() || t.ours() {
			continue
		}
		gk := t.kind()
		if e, ok := c.kinds.entry(gk); ok && !e.custom {
			continue // the API server has it built in
		}
		agreed := func(version string) bool {
			return c.types.agreed(schema.GroupVersionResource{Group: gk.Group, Version: version, Resource: t.Spec.Names.Plural})
		}
		v, ok := t.version(agreed)
		if !ok && len(c.bindings.Of(gk)) > 0 {
			v, ok = t.version(func(version string) bool { return c.boundIn(gk, version) })
			if !ok {
				v, ok = t.version(func(string) bool { return true })
			}
		}
		if ok {
			out[gk] = customKind(t, v)
		}
	}
	return out
}

func (c *customKinds) boundIn(gk schema.GroupKind, version string) bool {
	for _, b := range c.bindings.Of(gk) {
		if b.Spec.Resource.GroupVersionKind().Version == version {
			return true
		}
	}
	return false
}

func customKind(c *customType, v customVersion) entry {
	gk := c.kind()
	e := entry{custom: true, status: v.Subresources.Status != nil, scale: v.scale()}
	gvk := gk.WithVersion(v.Name)
	e.KindInfo, e.inTable = interpret.BuiltIn().Find(gk)
	if e.inTable {
		e.GroupVersionKind, e.Resource, e.ClusterScoped = gvk, c.Spec.Names.Plural, c.Spec.Scope == "Cluster"
	} else {
		e.KindInfo = interpret.Generic(gvk, c.Spec.Names.Plural, c.Spec.Scope == "Cluster", e.scale)
	}
	return e
}
