package fleet

import (
	"context"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// customKindsTimeout is how long a new session waits for the caches of custom kinds. A type
	// whose objects cannot be read, because its conversion fails for example, must not stop the
	// controllers from handling the other kinds.
	patience = 10 * time.Second
	// typesDebounce is the pause between two evaluations of the types.
	breath = 100 * time.Millisecond
)

// startCustomKinds starts the custom kinds that exist now, and follows changes until ctx ends.
func (t *Term) beginCustomKinds(ctx context.Context) error {
	t.bringKinds(ctx)
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := t.Clock.NewTimer(patience)
	defer timer.Stop()
	t.running.Go(func() {
		select {
		case <-timer.C():
			cancel()
		case <-wait.Done():
		}
	})
	if !cache.WaitForCacheSync(wait.Done(), func() bool { return t.kinds.waitingFor() == "" }) && ctx.Err() == nil {
		t.Log.Warn("cannot read objects of some kinds; objects that they may need are not removed meanwhile", "kinds", t.kinds.waitingFor())
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fleet: fill the caches: %w", context.Cause(ctx))
	}
	t.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.types.changed:
				t.bringKinds(ctx)
			}
			select {
			case <-ctx.Done():
				return
			case <-t.Clock.After(breath):
			}
		}
	})
	return nil
}

// syncKinds loads the customizations, starts the custom kinds that should be served, and stops
// those that should not.
func (t *Term) bringKinds(ctx context.Context) {
	t.kinds.learn(t.types.interpretations)
	wanted, have := t.customKinds(), t.kinds.custom()
	for gk, e := range wanted {
		if was, ok := have[gk]; !ok || !sameEntry(was, e) {
			t.bring(ctx, e)
		}
	}
	for gk := range have {
		if _, ok := wanted[gk]; !ok {
			t.Log.Info("kind is no longer served to the fleet", "kind", gk.String())
			t.kinds.close(gk)
		}
	}
}

func (t *Term) bring(ctx context.Context, e entry) {
	ctx, informer, err := t.kinds.open(ctx, e)
	if err != nil {
		t.Log.Error("watching a kind failed", "kind", e.GroupKind().String(), "error", err)
		return
	}
	t.Log.Info("kind is served to the fleet", "kind", e.GroupKind().String(), "version", e.Version)
	t.running.Go(func() { informer.RunWithContext(ctx) })
	t.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			t.kinds.settle(informer)
		}
	})
}

func sameEntry(a, b entry) bool {
	return a.GroupVersionKind == b.GroupVersionKind && a.Resource == b.Resource && a.ClusterScoped == b.ClusterScoped &&
		a.status == b.status && a.taught == b.taught && reflect.DeepEqual(a.scale, b.scale)
}

// customKinds returns the custom kinds that should be served: those that clusters accept as this
// control plane defines them, and those that have bindings. The latter are served until the last
// binding is gone.
func (t *Term) customKinds() map[schema.GroupKind]entry {
	out := map[schema.GroupKind]entry{}
	for _, c := range list[customType](t.types.crds.GetStore().List()) {
		if !c.established() || c.ours() {
			continue
		}
		gk := c.kind()
		if e, ok := t.kinds.get(gk); ok && !e.custom {
			continue // the API server has it built in
		}
		agreed := func(version string) bool {
			return t.types.agreed(schema.GroupVersionResource{Group: gk.Group, Version: version, Resource: c.Spec.Names.Plural})
		}
		v, ok := c.version(agreed)
		if !ok && len(t.bindings.by(byKind, gk.String())) > 0 {
			v, ok = c.version(func(version string) bool { return t.boundIn(gk, version) })
			if !ok {
				v, ok = c.version(func(string) bool { return true })
			}
		}
		if ok {
			out[gk] = t.customKind(c, v)
		}
	}
	return out
}

func (t *Term) boundIn(gk schema.GroupKind, version string) bool {
	for _, b := range t.bindings.by(byKind, gk.String()) {
		if b.Spec.Resource.GroupVersionKind().Version == version {
			return true
		}
	}
	return false
}

func (t *Term) customKind(c *customType, v customVersion) entry {
	gk := c.kind()
	e := entry{custom: true, status: v.Subresources.Status != nil, scale: v.scale()}
	gvk := gk.WithVersion(v.Name)
	e.Kind, e.taught = interpret.BuiltIn().Find(gk)
	if e.taught {
		e.GroupVersionKind, e.Resource, e.ClusterScoped = gvk, c.Spec.Names.Plural, c.Spec.Scope == "Cluster"
	} else {
		e.Kind = interpret.Generic(gvk, c.Spec.Names.Plural, c.Spec.Scope == "Cluster", e.scale)
	}
	return e
}

// ClusterServes reports whether a cluster accepts objects of a kind in a version, and the reason if
// not. Every cluster has the kinds that are built into the API server.
func (t *Term) Serves(cluster string, gvk schema.GroupVersionKind) (bool, string) {
	c, custom := t.types.defines(gvk.GroupKind())
	if !custom {
		return true, ""
	}
	name := v1alpha1.ImportName(gvk.GroupVersion().WithResource(c.Spec.Names.Plural), cluster)
	i, ok := get[v1alpha1.APIResourceImport](t.types.imports, name)
	if !ok {
		return false, t.notServed(cluster, gvk)
	}
	return Takes(i)
}

// ImportServes reports whether a cluster accepts objects of a type, going by the conditions of its
// import, and the reason if not.
func Takes(i *v1alpha1.APIResourceImport) (bool, string) {
	for _, need := range []string{v1alpha1.ImportAvailable, v1alpha1.ImportCompatible} {
		condition := conditionOf(i.Status.Conditions, need)
		if condition.Status == metav1.ConditionTrue {
			continue
		}
		why := condition.Message
		if why == "" {
			why = "not checked yet"
		}
		return false, fmt.Sprintf("type %s of the cluster is not %s: %s", i.Spec.GroupVersionKind().GroupKind(), need, why)
	}
	return true, ""
}

func (t *Term) notServed(cluster string, gvk schema.GroupVersionKind) string {
	items, err := t.types.imports.GetIndexer().ByIndex(byType, typeIn(gvk.GroupKind(), cluster))
	if err == nil {
		for _, i := range list[v1alpha1.APIResourceImport](items) {
			return fmt.Sprintf("the cluster serves %s in version %s, not in %s", gvk.GroupKind(), i.Spec.GroupVersion.Version, gvk.Version)
		}
	}
	return fmt.Sprintf("the cluster does not serve %s", gvk.GroupKind())
}

func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

// OnClusterServes calls f when the result of ClusterServes may have changed for a cluster and kind.
func (t *Term) OnServed(f func(cluster string, gk schema.GroupKind)) error {
	return On(t.types.imports, func(was, is *v1alpha1.APIResourceImport) {
		if was != nil && is != nil && verdict(was) == verdict(is) {
			return
		}
		i := is
		if i == nil {
			i = was
		}
		f(i.Spec.Location, i.Spec.GroupVersionKind().GroupKind())
	})
}

// verdict returns the conditions that ClusterServes depends on.
func verdict(i *v1alpha1.APIResourceImport) [2]metav1.ConditionStatus {
	return [2]metav1.ConditionStatus{conditionOf(i.Status.Conditions, v1alpha1.ImportAvailable).Status,
		conditionOf(i.Status.Conditions, v1alpha1.ImportCompatible).Status}
}
